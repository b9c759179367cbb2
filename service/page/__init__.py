"""The web page at `/`: server-rendered views over the same edge that the HTTP calls go through."""
