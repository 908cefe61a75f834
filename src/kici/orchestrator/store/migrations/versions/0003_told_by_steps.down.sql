drop table caches, secret_outputs;
alter table execution_steps drop column summary, drop column annotations;
