"""PostgreSQL as a program on this host: its binaries, its user, its data directory, its process. See `embedded.py`."""
