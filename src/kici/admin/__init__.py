"""`kici-admin`: what operators do to an orchestrator, over HTTP."""
