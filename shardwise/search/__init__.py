"""The search for strategies: the frontier of a problem, and the points chosen from it."""
