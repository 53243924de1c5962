-- The MAC of a schedule covers its id, its bot, its name and the times of its changes, and so its sealed record, which is bound to
-- these columns. The seal of the workspace counts the rows. The first start authenticates the schedules that exist.
alter table schedules add column mac blob;
