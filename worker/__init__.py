"""The worker: Celery tasks that claim a job, have it computed in a child and record the answer."""
