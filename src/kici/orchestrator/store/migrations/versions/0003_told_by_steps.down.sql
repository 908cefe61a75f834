drop table caches, secret_outputs;
alter table execution_jobs drop column fan_out_total, drop column fan_out_index;
alter table execution_steps drop column summary, drop column annotations;
