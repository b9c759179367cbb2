"""The calls of the service; the blocking client is generated from the asynchronous one."""
