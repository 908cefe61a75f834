"""A machine's worker: connection to the orchestrator, jobs, sandbox, checkout, masking, log streaming."""
