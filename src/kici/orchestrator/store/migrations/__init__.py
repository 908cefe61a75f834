"""Alembic revisions whose SQL stands in files beside them."""
