"""Simulation of a training step: what is in memory when, and what overlaps."""
