"""What every other part of the service builds on: settings, problems, logs, pools, addresses."""
