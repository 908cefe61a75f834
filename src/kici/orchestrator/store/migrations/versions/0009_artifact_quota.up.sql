-- Whose bytes an artifact's are: a repository as it is reached through one source, and there of trusted runs (null) or
-- of a pull request that is not trusted.
alter table artifacts
  add column routing_key text not null default '',
  add column repository text not null default '',
  add column pull_request integer;
update artifacts a
   set routing_key = coalesce(r.routing_key, ''), repository = r.repo_identifier,
       pull_request = case when r.trust_tier is not null then coalesce((r.event ->> 'prNumber')::integer, 0) end
  from execution_runs r
 where r.run_id = a.run_id and a.object_key <> '';
create index artifacts_quota on artifacts (routing_key, repository, object_key) include (size_bytes, pull_request)
  where object_key <> '';

-- The same of a session. It may send its parts from 0 up to `granted_parts`; so many count until it is published or its
-- objects are gone.
alter table uploads
  add column routing_key text not null default '',
  add column repository text not null default '',
  add column pull_request integer,
  add column granted_parts integer not null default 0;
create index uploads_quota on uploads (routing_key, repository) where kind = 'artifact' and state <> 'published';
