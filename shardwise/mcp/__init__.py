"""Shardwise's answers as tools of the Model Context Protocol, for assistants: `shardwise mcp`."""
