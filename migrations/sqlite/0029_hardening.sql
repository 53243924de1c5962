-- The MAC of a schedule covers its id, its bot, its name and the times of its changes, and so its sealed record, which is bound to
-- these columns. The seal of the workspace counts the rows. The first start authenticates the schedules that exist.
alter table schedules add column mac blob;

-- The labels of what was written to a sandbox, with spaces between them. A task that uses the sandbox has read them. Null for a
-- sandbox of an earlier release, of which nothing is known: every label. The MAC covers the column if it is not null.
alter table sandbox_instances add column labels text;

-- The conversation for which a task works; null for a task of no conversation. The sealed record has it too.
alter table tasks add column app_id text;
alter table tasks add column chat_id text;
create index tasks_conversation on tasks (workspace_id, app_id, chat_id) where app_id is not null;
