"""Curves in the forms that schedulers read; who would use one imports its module."""
