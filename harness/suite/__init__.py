"""Runs the tests: once, then each that failed once more alone; keeps what they took.

`python -m harness.suite NAME -- ARGUMENTS` is what `make test` and its like call (ADR 0066).
"""
