"""Packages that workflows import: `.kici/pyproject.toml` and `.kici/uv.lock`, made into an environment by uv.

The same here and there: agents, `kici compile` and `kici run local` use it. It imports nothing of ours but errors.
"""
