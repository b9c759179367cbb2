"""The pages of docs/reference, built from the code."""
