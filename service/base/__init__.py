"""What every other part of the service stands on: settings, problems, logs, pools, addresses."""
