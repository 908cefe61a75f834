-- seed: of a job that stands for others, which take its place once its evaluation has ended: what they are made from.
-- carried: the lock file does not have the job as it is, so its definition goes to the agent with its context.
alter table execution_jobs
  add column seed jsonb,
  add column generated_by text,
  add column carried boolean not null default false;
