"""Handlers: what each route does, with a session and without HTTP."""
