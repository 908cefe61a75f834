drop index idx_execution_runs_branch;
