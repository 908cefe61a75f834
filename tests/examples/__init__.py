"""The harness of `make examples`."""
