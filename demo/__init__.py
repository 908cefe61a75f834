"""`make demo`: everything for real, in a temporary directory, in a few seconds."""
