"""The pages of docs/reference, made of the code."""
