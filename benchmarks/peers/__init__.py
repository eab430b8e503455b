"""What `benchmarks/speed.py` is made of: the cases, dualnet and its peers, and their workers.

Each setting, a library with its options, runs in a process of its own; the peers in torch load
neither Keras nor dualnet.
"""
