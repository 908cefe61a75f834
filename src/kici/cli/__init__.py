"""The developer's program `kici`."""
