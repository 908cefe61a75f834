"""`kici-agent check`: whether this agent would work here, hop by hop, and for what fails the way out.

Each hop uses the agent's own code for what it looks at. Nothing is registered anywhere, and an agent that runs here
meanwhile is not disturbed.
"""
