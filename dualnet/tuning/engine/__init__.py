"""What stands in for KerasTuner's gaps: a search that survives kills, runs on many and ends.

`oracles` draw the trials, `tuner` runs them, `processes` gives each a process of its own, and
`chief` serves workers of other machines.
"""
