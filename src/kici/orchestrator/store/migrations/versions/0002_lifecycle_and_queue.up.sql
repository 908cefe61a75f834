-- Concurrency groups. A row is one holder of, or waiter for, a slot: a whole run (job_id null) or one job.
-- routing_key is the scope of the group; whoever writes here holds the advisory lock on it, taken before every run.
create table concurrency_groups (
  id uuid primary key default gen_random_uuid(),
  arrival bigint generated always as identity,
  group_key text not null,
  routing_key text not null,
  run_id uuid not null,
  job_id uuid,
  status text not null check (status in ('active', 'queued', 'completed', 'cancelled')),
  max_active integer not null default 1 check (max_active >= 1),
  keep_latest boolean not null default true,
  created_at timestamptz not null default now(),
  activated_at timestamptz,
  completed_at timestamptz,
  released_by text
);
create unique index concurrency_groups_holder on concurrency_groups (run_id, coalesce(job_id, run_id))
  where status in ('active', 'queued');
create index idx_concurrency_groups_key on concurrency_groups (routing_key, group_key, status, arrival)
  where status in ('active', 'queued');
create index idx_concurrency_groups_run_id on concurrency_groups (run_id);
create index concurrency_groups_closed on concurrency_groups (completed_at) where completed_at is not null;

alter table execution_runs
  add column concurrency_group text,
  add column concurrency_scope text,
  add column concurrency jsonb,
  add column deadline timestamptz,
  add column rerun_request text,
  add column rerun_mode text check (rerun_mode in ('all', 'failed', 'job'));
create index idx_execution_runs_deadline on execution_runs (deadline)
  where deadline is not null and status in ('pending', 'running');
drop index idx_execution_runs_open;
create index idx_execution_runs_open on execution_runs (created_at)
  where status in ('pending', 'held', 'running', 'cancelling');
create unique index execution_runs_rerun on execution_runs (parent_run_id, rerun_request) where rerun_request is not null;

alter table execution_jobs
  add column concurrency_group text,
  add column concurrency_scope text,
  add column concurrency jsonb,
  add column wave_max_parallel integer,
  add column wave_fail_fast boolean not null default false,
  add column wave_gated boolean not null default false,
  add column deadline timestamptz,
  add column timed_out text,
  add column reused_from uuid;
create index idx_execution_jobs_deadline on execution_jobs (deadline)
  where deadline is not null and status = 'running';

-- What an operator has stopped: everything, a repository, or jobs that want a label.
create table queue_pauses (
  id bigint generated always as identity primary key,
  scope text not null check (scope in ('all', 'repository', 'label')),
  value text not null default '',
  reason text not null default '',
  created_by text not null,
  created_at timestamptz not null default now(),
  constraint queue_pauses_what unique (scope, value)
);

create table repository_caps (
  repository text primary key,
  max_running integer not null check (max_running >= 1),
  created_by text not null,
  created_at timestamptz not null default now()
);
create index dispatch_queue_held on dispatch_queue (repository) where session_id is not null;

alter table dispatch_queue
  add column claimed_at timestamptz,
  add column last_loss text;
create index agent_sessions_closed on agent_sessions (closed_at) where closed_at is not null;
