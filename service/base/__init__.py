"""Base of the other parts of the service: settings, problems, logs, pools, addresses."""
