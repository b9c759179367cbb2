"""Containers as hosts, and clusters of them."""
