"""HTTP routes, one module per resource. Each has `routes(…)`, which takes what the handlers need."""
