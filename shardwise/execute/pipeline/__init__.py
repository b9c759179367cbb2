"""Pipelines on ranks: stages, what goes between them, and the step that they run."""
