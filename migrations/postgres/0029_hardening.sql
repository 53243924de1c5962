-- The MAC of a schedule covers its id, its bot, its name and the times of its changes, and so its sealed record, which is bound to
-- these columns. The seal of the workspace counts the rows. The first start authenticates the schedules that exist.
alter table schedules add column mac bytea;

-- The labels of what was written to a sandbox, with spaces between them. A task that uses the sandbox has read them. Null for a
-- sandbox of an earlier release, of which nothing is known: every label. The MAC covers the column if it is not null.
alter table sandbox_instances add column labels text collate "C";
