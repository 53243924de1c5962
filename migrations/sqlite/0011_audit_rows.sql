-- Rows of the audit from version 2 on. `body` is the canonical text of a row, which is hashed; the other columns only
-- select rows, and verification compares them with `body`. Ids are blobs of 16 bytes, hashes of 32. `status` is the status
-- that the API reports. Rows of version 1 stay in audit_events.
create table audit_rows (
    writer text not null,
    sequence bigint not null,
    hash blob not null,
    body text not null,
    kind text not null,
    flags text,
    request_id blob not null,
    workspace_id blob,
    bot_id blob,
    tool text,
    operation text,
    status text not null,
    started_at bigint not null,
    primary key (writer, sequence)
);
create index audit_rows_page on audit_rows (workspace_id, request_id);
create index audit_rows_changes on audit_rows (workspace_id, request_id) where flags = 'change';
create index audit_rows_started on audit_rows (writer, sequence) where kind = 'started';
create index audit_rows_bot on audit_rows (workspace_id, bot_id, request_id);
create index audit_rows_tool on audit_rows (workspace_id, tool, request_id);
create index audit_rows_operation on audit_rows (workspace_id, operation, request_id);
create index audit_rows_status on audit_rows (workspace_id, status, request_id)
    where status <> 'success' and status <> 'running';

create index audit_events_bot on audit_events (workspace_id, bot_id, request_id);
create index audit_events_tool on audit_events (workspace_id, tool, request_id);
create index audit_events_operation on audit_events (workspace_id, operation, request_id);
create index audit_events_started on audit_events (writer, sequence) where kind = 'started';

-- These stop accidents. A program that can write the file can drop them; the chain then reveals its edits.
create trigger audit_rows_no_update before update on audit_rows
begin
    select raise(abort, 'audit_rows is append-only');
end;
create trigger audit_rows_no_delete before delete on audit_rows
begin
    select raise(abort, 'audit_rows is append-only');
end;
