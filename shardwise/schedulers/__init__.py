"""Curves in the forms that schedulers read: one module for each."""
