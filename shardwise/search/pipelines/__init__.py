"""Pipelines: where to cut a model into stages, and how each stage is split over its devices."""
