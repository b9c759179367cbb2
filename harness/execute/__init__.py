"""Ranks, strategies and models that plans are run with."""
