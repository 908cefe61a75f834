"""Agents' sockets, and what this coordinator remembers of the agents behind them. The truth is in the store."""
