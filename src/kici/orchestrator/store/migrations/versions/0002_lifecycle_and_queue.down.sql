drop index agent_sessions_closed;
alter table dispatch_queue drop column last_loss, drop column claimed_at;
drop index dispatch_queue_held;
drop table repository_caps, queue_pauses;
alter table execution_jobs
  drop column reused_from, drop column timed_out, drop column deadline, drop column wave_gated, drop column wave_fail_fast,
  drop column wave_max_parallel, drop column concurrency, drop column concurrency_scope, drop column concurrency_group;
drop index execution_runs_rerun;
drop index idx_execution_runs_open;
create index idx_execution_runs_open on execution_runs (created_at) where status in ('pending', 'running', 'cancelling');
alter table execution_runs
  drop column rerun_mode, drop column rerun_request, drop column deadline, drop column concurrency,
  drop column concurrency_scope, drop column concurrency_group;
drop table concurrency_groups;
