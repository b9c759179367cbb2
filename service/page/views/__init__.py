"""What each page shows: documents of the HTTP calls, prepared for the templates."""
