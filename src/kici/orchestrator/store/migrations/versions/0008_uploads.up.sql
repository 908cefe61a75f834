-- What an attempt sends, from the moment at which it may until its objects are published or removed. The objects are
-- `object_key/<n>`; `expires_at` of one that is open: no part is taken after it; of another: the row and what it has
-- left can go. Without `part_bytes` it is what an artifact of an older attempt has left, one object at `object_key`.
create table uploads (
  id uuid primary key,
  run_id uuid not null,
  job_id uuid not null,
  attempt integer not null,
  kind text not null check (kind in ('artifact', 'cache')),
  name text not null,
  object_key text not null,
  part_bytes integer check (part_bytes > 0),
  state text not null default 'open' check (state in ('open', 'published', 'over')),
  reason text not null default '',
  created_at timestamptz not null default now(),
  expires_at timestamptz not null
);
create index uploads_expire on uploads (expires_at);
create index uploads_job on uploads (job_id);

-- Of each object but the last; null: there is one object only, at `object_key` itself.
alter table caches add column part_bytes integer;
alter table artifacts add column part_bytes integer;

-- Entries are announced in `uploads` now.
update caches set state = 'gone', used_at = now() where state = 'uploading';

-- An artifact past its time: its row stays and says so; `object_key` is empty once its objects are gone. A rerun's row
-- names the same objects as that of the run before.
alter table artifacts add column expired_at timestamptz;
create index artifacts_kept on artifacts (created_at) where expired_at is null;
create index artifacts_expired on artifacts (expired_at) where expired_at is not null and object_key <> '';
create index artifacts_objects on artifacts (object_key) where object_key <> '';
