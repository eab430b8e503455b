"""The report of a search: its trials as `Row`s, and tables, plots and display made of them."""
