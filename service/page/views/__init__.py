"""What each page shows: documents of the HTTP calls, made ready for the templates."""
