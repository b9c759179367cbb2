"""Measurements on ranks whose devices are of several kinds: one profile with groups."""
