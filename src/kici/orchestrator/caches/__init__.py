"""What jobs keep: artifacts for their run, cache entries for later runs."""
