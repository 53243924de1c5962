-- The position of a text in another, by the name that SQLite has for it. The statements of both databases are the same.
create function instr(haystack text, needle text) returns integer language sql immutable parallel safe
as 'select strpos(haystack, needle)';

-- Indexes for the tree of a call, and for lists by resource and by rule. In rows of version 2, these values are only in
-- `body`. Its text is canonical JSON: a quotation mark inside of a string follows a backslash, so the text of a key with
-- its quotation marks occurs only where the key is. Ids have 36 characters.
create index audit_rows_parent on audit_rows (
    workspace_id, substr(body, instr(body, '"parent_request_id":"') + 21, 36), request_id
) where instr(body, '"parent_request_id":"') > 0;
create index audit_rows_resource on audit_rows (
    workspace_id, substr(body, instr(body, '"resource_id":"') + 15, 36), request_id
) where instr(body, '"resource_id":"') > 0;
-- A rule ends a call, so only calls that failed have one.
create index audit_rows_failed on audit_rows (workspace_id, request_id) where status <> 'success' and status <> 'running';

create index audit_events_parent on audit_events (workspace_id, parent_request_id) where parent_request_id is not null;
create index audit_events_resource on audit_events (workspace_id, resource_id, request_id);
