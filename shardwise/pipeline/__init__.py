"""Schedules of pipelines as data: who does what when, how long a step takes, what is kept."""
