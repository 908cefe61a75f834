-- Of whose ends the workflow wants to be told: `kind:name`, with `*` for any; see engine/completions.py.
alter table workflow_registrations add column listens_to text[];
create index idx_wf_reg_listens_to on workflow_registrations using gin (listens_to) with (fastupdate = off)
  where listens_to is not null;

update workflow_registrations r
   set listens_to = (
     select array_agg(distinct k.kind || ':' || coalesce(n.name, '*'))
       from jsonb_array_elements(r.lock_entry -> 'triggers') t
      cross join lateral (
        select 'workflow_complete' where t ->> 'type' = 'workflow_complete'
            or (t ->> 'type' = 'lifecycle' and t -> 'events' ? 'workflow_complete')
        union all
        select 'job_complete' where t ->> 'type' = 'job_complete'
            or (t ->> 'type' = 'lifecycle' and t -> 'events' ?| array['job_complete', 'job_failed'])
      ) k (kind)
       left join lateral jsonb_array_elements_text(
         case t ->> 'type' when 'workflow_complete' then t -> 'name' when 'job_complete' then t -> 'workflow' end
       ) n (name) on true)
 where trigger_types && array['workflow_complete', 'job_complete', 'lifecycle'];

-- Of what a workflow has caused (`headers.workflow`), by the time at which it came.
create index event_log_caused on event_log (routing_key, repo_identifier, (headers ->> 'workflow'), received_at)
  where provider in ('kici_event', 'completion');
