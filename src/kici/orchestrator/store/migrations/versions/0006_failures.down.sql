alter table execution_jobs
  drop column peak_memory_bytes, drop column signal, drop column exit_code, drop column reason;
alter table execution_steps
  drop column peak_memory_bytes, drop column last_lines, drop column signal, drop column reason;
