"""Damaged problem files."""
