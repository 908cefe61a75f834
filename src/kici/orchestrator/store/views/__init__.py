"""Reads for pages. They answer with the structs of the HTTP API, and every list has a limit."""
