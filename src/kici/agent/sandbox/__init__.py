"""Where a job's runner runs: the contract, one module per implementation, the choice between them."""
