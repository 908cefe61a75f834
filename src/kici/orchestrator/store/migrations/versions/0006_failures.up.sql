-- Why steps and jobs did not succeed, beside the sentence in error_message.
alter table execution_steps
  add column reason text,
  add column signal text,
  add column last_lines text,
  add column peak_memory_bytes bigint;

alter table execution_jobs
  add column reason text,
  add column exit_code integer,
  add column signal text,
  add column peak_memory_bytes bigint;
