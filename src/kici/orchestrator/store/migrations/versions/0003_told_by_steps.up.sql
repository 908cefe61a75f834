alter table execution_steps
  add column annotations jsonb,
  add column summary text;

-- Place among the combinations of the job's matrix.
alter table execution_jobs
  add column fan_out_index integer not null default 0,
  add column fan_out_total integer not null default 1;

-- Sealed by the key ring; gone with the job, and so with the run.
create table secret_outputs (
  job_id uuid not null references execution_jobs (job_id) on delete cascade,
  attempt integer not null,
  name text not null,
  sealed text not null,
  key_version integer not null,
  created_at timestamptz not null default now(),
  primary key (job_id, attempt, name)
);

-- An object of a cache is written down before it is uploaded, so that none is ever lost sight of: `uploading`, then
-- `ready`, or `gone` as soon as nobody is to find it; the sweeper removes the object and then the row. used_at: when it
-- was made, last found, or gone.
-- scope is '' for what the repository trusts, else of one pull request.
create table caches (
  id uuid primary key,
  routing_key text not null,
  repository text not null,
  scope text not null,
  key text not null,
  state text not null default 'uploading' check (state in ('uploading', 'ready', 'gone')),
  object_key text not null,
  size_bytes bigint not null default 0,
  sha256 text not null default '',
  run_id uuid not null,
  job_id uuid not null,
  created_at timestamptz not null default now(),
  used_at timestamptz not null default now()
);
create unique index caches_entry on caches (routing_key, repository, scope, key collate "C") where state = 'ready';
create index caches_used on caches (used_at) where state = 'ready';
create index caches_unready on caches (used_at) where state <> 'ready';
