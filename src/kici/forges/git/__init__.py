"""Git as the orchestrator uses it: read at a commit, compare, serve, keep a repository of its own. Never a work tree."""
