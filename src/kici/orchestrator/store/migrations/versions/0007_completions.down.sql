drop index event_log_caused;
alter table workflow_registrations drop column listens_to;
