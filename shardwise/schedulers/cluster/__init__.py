"""A shared cluster, simulated: what knowing every job's curve is worth."""
