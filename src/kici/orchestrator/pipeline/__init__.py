"""From a stored event to runs: claim, normalize, read the lock file, match, and make the runs in one transaction."""
