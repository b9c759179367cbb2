"""The pages' data: documents of the HTTP calls, prepared for the templates."""
