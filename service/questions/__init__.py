"""Questions from request to content id: uploads, options, offers, cost and order."""
