drop table outbox, artifacts, log_chunks, leases, coordinators, dispatch_queue, label_sets, execution_steps,
  execution_job_needs, execution_jobs, agent_sessions, execution_runs, event_payloads, event_log,
  workflow_registrations, generic_webhook_sources, sources, scoped_secrets, agent_tokens, admin_tokens, cluster_meta;
