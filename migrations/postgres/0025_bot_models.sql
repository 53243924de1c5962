-- How a bot asks models: the models after its first, as JSON; the limits of its tasks, as JSON; the time in seconds after
-- which its sessions end; and 1 if clients may bring tools of their own. The MAC of a row covers these columns only if
-- one of them is not null, so that rows of earlier releases keep their MACs.
alter table bots add column model_fallbacks text collate "C";
alter table bots add column task_limits text collate "C";
alter table bots add column session_idle_s bigint;
alter table bots add column client_tools bigint;
