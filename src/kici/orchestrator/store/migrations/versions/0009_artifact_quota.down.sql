drop index uploads_quota, artifacts_quota;
alter table uploads
  drop column routing_key, drop column repository, drop column pull_request, drop column granted_parts;
alter table artifacts drop column routing_key, drop column repository, drop column pull_request;
