"""Applies `engine.lifecycle` to stored runs, jobs and steps: one module per rule.

A rule is a function from rows that its transaction has locked (`locked.Locked`) to writes, and it writes all that
follows from them: steps settled, dependants released, the run ended. What others are to be told after the commit
gathers in `Locked.wakes`.
"""
