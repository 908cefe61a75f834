"""Who is there, and what they may do: tokens, roles, permissions."""
