"""A training step run in a model: what is alive when, and what overlaps what."""
