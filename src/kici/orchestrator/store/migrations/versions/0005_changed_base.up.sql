-- Without the status: a run whose status changes writes no entry here.
create index idx_execution_runs_branch on execution_runs (repo_identifier, ref, workflow_name, created_at desc);
