"""Leader-only services, one small module each, and the rhythm that every service of the orchestrator keeps."""
