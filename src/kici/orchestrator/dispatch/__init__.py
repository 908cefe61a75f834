"""From the queue to the agents: which slot takes which job, what is sent, and why a job still waits."""
