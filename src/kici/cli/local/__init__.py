"""`kici run local`: a workflow on this machine, with the engine's decisions and the agent's runner."""
