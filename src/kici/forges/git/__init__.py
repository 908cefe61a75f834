"""Git as the orchestrator uses it: read at a commit, compare, serve, keep its own repository. Never a work tree."""
