"""The service's answers as tools of the Model Context Protocol, under its keys: `/mcp`."""
