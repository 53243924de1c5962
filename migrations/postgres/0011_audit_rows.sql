-- Rows of the audit from version 2 on. `body` is the canonical text of a row, which is hashed; the other columns only
-- select rows, and verification compares them with `body`. Ids are blobs of 16 bytes, hashes of 32. `status` is the status
-- that the API reports. Rows of version 1 stay in audit_events.
create table audit_rows (
    writer text collate "C" not null,
    sequence bigint not null,
    hash bytea not null,
    body text collate "C" not null,
    kind text collate "C" not null,
    flags text collate "C",
    request_id bytea not null,
    workspace_id bytea,
    bot_id bytea,
    tool text collate "C",
    operation text collate "C",
    status text collate "C" not null,
    started_at bigint not null,
    primary key (writer, sequence)
);
create index audit_rows_page on audit_rows (workspace_id, request_id);
create index audit_rows_changes on audit_rows (workspace_id, request_id) where flags = 'change';
create index audit_rows_started on audit_rows (writer, sequence) where kind = 'started';
create index audit_rows_bot on audit_rows (workspace_id, bot_id, request_id);
create index audit_rows_tool on audit_rows (workspace_id, tool, request_id);
-- A hash index, because a B-tree cannot hold values over 2.7 KB, and a manifest does not limit the length of an operation.
create index audit_rows_operation on audit_rows using hash (operation);
create index audit_rows_status on audit_rows (workspace_id, status, request_id)
    where status <> 'success' and status <> 'running';

create index audit_events_bot on audit_events (workspace_id, bot_id, request_id);
create index audit_events_tool on audit_events (workspace_id, tool, request_id);
create index audit_events_operation on audit_events using hash (operation);
create index audit_events_started on audit_events (writer, sequence) where kind = 'started';

-- These stop accidents. The owner of the table can drop them; the chain then reveals its edits.
create function audit_rows_refuse() returns trigger language plpgsql as $$
begin
    raise exception 'audit_rows is append-only';
end;
$$;
create trigger audit_rows_no_update before update on audit_rows
for each statement execute function audit_rows_refuse();
create trigger audit_rows_no_delete before delete on audit_rows
for each statement execute function audit_rows_refuse();
create trigger audit_rows_no_truncate before truncate on audit_rows
for each statement execute function audit_rows_refuse();
