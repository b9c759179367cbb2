"""Commands and Python of the documentation."""
