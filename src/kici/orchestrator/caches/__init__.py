"""What jobs keep: artifacts now, caches later."""
