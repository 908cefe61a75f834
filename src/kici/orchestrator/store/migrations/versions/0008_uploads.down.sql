drop index artifacts_kept, artifacts_expired, artifacts_objects;
alter table artifacts drop column expired_at, drop column part_bytes;
alter table caches drop column part_bytes;
drop table uploads;
