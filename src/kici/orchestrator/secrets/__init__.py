"""Secrets that the orchestrator keeps: encrypted under a master key that is never in the database."""
