"""Object storage: logs, artifacts, later caches and archives. `contract.py` says what a store promises."""
