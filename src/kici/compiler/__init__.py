"""Workflows → lock file: collect (in a child process), check, hash, write."""
