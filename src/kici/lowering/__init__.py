"""Definitions of the SDK → structs of the lock file: for the compiler, and for the runner that makes jobs."""
