create table cluster_meta (
  key varchar(64) primary key,
  value text not null,
  created_at timestamptz not null default now()
);
insert into cluster_meta (key, value) values ('cluster_id', gen_random_uuid()::text);

create table admin_tokens (
  id uuid primary key default gen_random_uuid(),
  token_hash text not null unique,
  label text not null,
  role text not null check (role in ('owner', 'admin', 'auditor', 'developer')),
  routing_key text,
  created_at timestamptz not null default now(),
  expires_at timestamptz,
  last_used_at timestamptz,
  revoked boolean not null default false
);
create unique index admin_tokens_bootstrap on admin_tokens (label) where label = 'bootstrap';

create table agent_tokens (
  id uuid primary key default gen_random_uuid(),
  token_hash text not null unique,
  token_prefix text not null,
  labels jsonb,
  agent_type text not null default 'static' check (agent_type in ('ephemeral', 'static')),
  created_at timestamptz not null default now(),
  last_seen_at timestamptz,
  created_by text,
  revoked_at timestamptz,
  expires_at timestamptz
);

create table scoped_secrets (
  id uuid primary key default gen_random_uuid(),
  org_id varchar(16) not null,
  scope text not null,
  key text not null,
  encrypted_value text not null,
  backend_type text not null default 'pg',
  key_version integer not null default 1,
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now(),
  constraint scoped_secrets_org_id_scope_key_unique unique (org_id, scope, key)
);

create table sources (
  id uuid primary key default gen_random_uuid(),
  provider text not null,
  name text not null,
  routing_key text not null unique,
  config jsonb not null default '{}',
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now(),
  customer_id varchar(255) not null default 'default'
);
create unique index sources_customer_name on sources (customer_id, name);

create table generic_webhook_sources (
  id uuid primary key default gen_random_uuid(),
  customer_id varchar(255) not null,
  name varchar(255) not null,
  routing_key varchar(500) not null unique,
  verification_method varchar(50) not null default 'hmac_sha256',
  verification_config jsonb not null default '{}',
  event_type_header varchar(255) default 'X-Event-Type',
  event_type_path varchar(500),
  idempotency_key_header varchar(255),
  idempotency_key_path varchar(500),
  dedup_window_seconds integer not null default 300,
  max_payload_bytes integer not null default 10485760,
  allowed_events jsonb,
  strip_headers jsonb not null
    default '["authorization", "cookie", "set-cookie", "proxy-authorization", "x-api-key", "x-auth-token"]',
  enabled boolean not null default true,
  rate_limit_rpm integer not null default 600,
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now(),
  deleted_at timestamptz,
  provider_type text not null default 'generic' check (provider_type in ('generic', 'internal')),
  git_config jsonb
);
create unique index idx_generic_webhook_sources_customer_name
  on generic_webhook_sources (customer_id, name) where deleted_at is null;

create table workflow_registrations (
  id uuid primary key default gen_random_uuid(),
  repo_identifier varchar(500) not null,
  workflow_name varchar(255) not null,
  lock_entry jsonb not null,
  trigger_types text[] not null,
  routing_key varchar(500) not null default '',
  provider_context jsonb not null default '{}',
  disabled boolean not null default false,
  commit_sha text,
  source_file text,
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now(),
  is_global boolean not null default false,
  customer_id text not null,
  constraint uq_wf_reg_routing_repo_wf unique (routing_key, repo_identifier, workflow_name)
);
create index idx_wf_reg_triggers on workflow_registrations using gin (trigger_types);
create index idx_wf_reg_repo on workflow_registrations (customer_id, repo_identifier);

create table event_log (
  id uuid primary key default gen_random_uuid(),
  org_id varchar(16) not null,
  delivery_id text not null,
  routing_key text not null,
  event text not null,
  action text,
  source text not null check (source in ('relay', 'direct')),
  provider text not null,
  headers jsonb not null default '{}',
  repo_identifier text,
  ref text,
  payload_key text,
  payload_omitted boolean not null default false,
  payload_omitted_reason text check (payload_omitted_reason in ('size_exceeded', 'storage_failed')),
  payload_size_bytes integer not null,
  payload_hash text not null,
  matched_count integer not null default 0,
  status text not null default 'received' check (status in
    ('received', 'processed', 'duplicate', 'ignored', 'lockfile_missing', 'lockfile_corrupt', 'failed')),
  run_id uuid,
  error_message text,
  warnings jsonb not null default '[]',
  received_at timestamptz not null default now(),
  processed_at timestamptz,
  claimed_by text,
  claim_deadline timestamptz,
  attempts integer not null default 0,
  next_attempt_at timestamptz not null default now()
);
create unique index event_log_org_delivery_idx on event_log (org_id, delivery_id);
create index event_log_org_received_idx on event_log (org_id, received_at desc);
create index event_log_open_idx on event_log (next_attempt_at) where status = 'received';

create table event_payloads (
  event_id uuid primary key references event_log (id) on delete cascade,
  content_type text not null default '',
  body bytea not null,
  created_at timestamptz not null default now()
);
alter table event_payloads alter column body set storage external;
create index event_payloads_created on event_payloads (created_at);

create table execution_runs (
  id uuid primary key default gen_random_uuid(),
  run_id uuid not null unique,
  org_id varchar(16) not null default 'default',
  event_id uuid,
  workflow_name text not null,
  status text not null default 'pending',
  provider text not null,
  repo_identifier text not null,
  ref text not null,
  sha text not null,
  workflow_sha text not null,
  lock_sha256 text not null default '',
  event jsonb not null default '{}',
  clone_url text not null default '',
  delivery_id text,
  trigger_event text,
  trigger_decision jsonb,
  commit_message text,
  started_at timestamptz,
  completed_at timestamptz,
  duration_ms integer,
  provider_context jsonb not null default '{}',
  routing_key text,
  is_test_run boolean not null default false,
  parent_run_id uuid references execution_runs (run_id),
  original_run_id text,
  triggered_by text,
  cancelled_by text,
  environment text,
  trust_tier text,
  lock_file_source text,
  contributor_username text,
  created_at timestamptz not null default now(),
  failure_reason text,
  log_bytes bigint not null default 0,
  init_failure jsonb,
  workflow_timeout_ms integer
);
create unique index execution_runs_event_workflow on execution_runs (event_id, repo_identifier, workflow_name)
  where parent_run_id is null and event_id is not null;
create index idx_execution_runs_created on execution_runs (created_at desc);
create index idx_execution_runs_repo on execution_runs (repo_identifier, created_at desc);
create index idx_execution_runs_open on execution_runs (created_at)
  where status in ('pending', 'running', 'cancelling');

create table agent_sessions (
  id uuid primary key,
  agent_id text not null,
  boot_id text not null,
  token_id uuid,
  coordinator text not null,
  protocol integer not null,
  version text not null default '',
  labels text[] not null,
  slots integer not null,
  facts jsonb not null default '{}',
  draining boolean not null default false,
  opened_at timestamptz not null default now(),
  last_seen_at timestamptz not null default now(),
  lost_at timestamptz,
  closed_at timestamptz
);
create index agent_sessions_open on agent_sessions (agent_id) where closed_at is null;
create index agent_sessions_coordinator on agent_sessions (coordinator) where closed_at is null;

create table execution_jobs (
  id uuid primary key default gen_random_uuid(),
  run_id uuid not null references execution_runs (run_id),
  job_id uuid not null unique,
  job_name text not null,
  base_job_name text not null,
  position integer not null,
  status text not null default 'pending',
  attempt integer not null default 0,
  session_id uuid,
  definition jsonb not null,
  matrix_values jsonb,
  agent_id text,
  ready_at timestamptz,
  started_at timestamptz,
  completed_at timestamptz,
  duration_ms integer,
  error_message text,
  last_heartbeat_at timestamptz,
  user_code_began boolean not null default false,
  retry_on_infra jsonb,
  recovery_deadline timestamptz,
  report_deadline timestamptz,
  cancel_requested_at timestamptz,
  cancel_force boolean not null default false,
  cancel_deadline timestamptz,
  log_hour timestamptz,
  runs_on_labels jsonb,
  outputs jsonb,
  environment text,
  needs_satisfied boolean not null default false,
  group_name text,
  routing_key text,
  log_bytes bigint not null default 0,
  init_failure jsonb,
  created_at timestamptz not null default now()
);
create index idx_execution_jobs_run_id on execution_jobs (run_id);
create index idx_execution_jobs_session on execution_jobs (session_id) where session_id is not null
  and status in ('running', 'recovering', 'cancelling');
create index idx_execution_jobs_recovery on execution_jobs (least(recovery_deadline, report_deadline))
  where status = 'recovering';
create index idx_execution_jobs_cancel on execution_jobs (cancel_deadline) where status = 'cancelling';

create table execution_job_needs (
  run_id uuid not null references execution_runs (run_id),
  job_id uuid not null references execution_jobs (job_id),
  upstream_job_id uuid not null references execution_jobs (job_id),
  job_name text not null,
  upstream_name text not null,
  run_on jsonb not null,
  primary key (job_id, upstream_job_id)
);
create index idx_ejn_upstream on execution_job_needs (upstream_job_id);
create index idx_ejn_run on execution_job_needs (run_id);

create table execution_steps (
  id uuid primary key default gen_random_uuid(),
  run_id uuid not null,
  job_id uuid not null,
  attempt integer not null default 1,
  step_index integer not null,
  step_name text not null,
  status text not null default 'pending',
  step_type text not null default 'step',
  step_attempt integer not null default 1,
  continue_on_error boolean not null default false,
  started_at timestamptz,
  completed_at timestamptz,
  duration_ms integer,
  exit_code integer,
  error_message text,
  log_path text,
  log_chunks integer,
  log_lines integer,
  log_bytes bigint not null default 0,
  secrets_accessed jsonb,
  routing_key text,
  created_at timestamptz not null default now(),
  constraint idx_execution_steps_unique unique (run_id, job_id, attempt, step_index)
);
create index idx_execution_steps_job_id on execution_steps (job_id);

create table label_sets (
  id bigint generated always as identity primary key,
  key text not null unique,
  labels text[] not null,
  excludes text[] not null,
  patterns jsonb not null default '[]',
  created_at timestamptz not null default now()
);

create table dispatch_queue (
  id uuid primary key,
  run_id uuid not null,
  workflow_name text not null,
  job_name text not null,
  org_id varchar(16) not null default 'default',
  repository text not null,
  label_set_id bigint not null references label_sets (id),
  sort_key double precision not null,
  attempt integer not null default 0,
  session_id uuid,
  job_token_hash text,
  ack_deadline timestamptz,
  accepted_at timestamptz,
  not_before timestamptz not null default now(),
  pinned_agent text,
  last_provisioning_error text,
  rejections integer not null default 0,
  enqueued_at timestamptz not null default now(),
  created_at timestamptz not null default now(),
  expires_at timestamptz
);
create index dispatch_queue_lane on dispatch_queue (label_set_id, repository, sort_key) where session_id is null;
create index dispatch_queue_later on dispatch_queue (not_before) where session_id is null and attempt > 0;
create index dispatch_queue_ack on dispatch_queue (ack_deadline) where ack_deadline is not null;
create index dispatch_queue_session on dispatch_queue (session_id) where session_id is not null;
create index dispatch_queue_run on dispatch_queue (run_id);
create index dispatch_queue_token on dispatch_queue (job_token_hash) where job_token_hash is not null;
create index dispatch_queue_expiry on dispatch_queue (expires_at) where session_id is null;

create table coordinators (
  instance text primary key,
  lease_expires_at timestamptz not null,
  version text not null,
  url text not null default '',
  started_at timestamptz not null default now(),
  lease_since timestamptz not null default now()
);

create table leases (
  name text primary key,
  holder text not null,
  token bigint not null,
  expires_at timestamptz not null
);

create table log_chunks (
  log_hour timestamptz not null,
  job_id uuid not null,
  attempt integer not null,
  step_index integer not null,
  sequence integer not null,
  first_line integer not null,
  lines integer not null,
  bytes bytea not null,
  created_at timestamptz not null default now(),
  primary key (job_id, attempt, step_index, sequence, log_hour)
) partition by range (log_hour);

create table artifacts (
  id uuid primary key default gen_random_uuid(),
  run_id uuid not null,
  job_id uuid not null,
  attempt integer not null,
  name text not null,
  object_key text not null,
  size_bytes bigint not null,
  sha256 text not null,
  created_at timestamptz not null default now(),
  constraint artifacts_run_name unique (run_id, name)
);

create table outbox (
  id bigint generated always as identity primary key,
  kind text not null,
  target text not null,
  dedupe_key text not null unique,
  payload jsonb not null default '{}',
  due_at timestamptz not null default now(),
  attempts integer not null default 0,
  last_error text,
  created_at timestamptz not null default now()
);
create index outbox_due on outbox (kind, due_at);
