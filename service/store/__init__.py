"""The store: the rows that are the truth."""
