"""The worker: Celery tasks that claim a job, have it computed in a child, record the answer."""
