-- Schedules: the times at which bots start tasks. The sealed record has everything that a person saved, so that a row that is
-- added or edited with SQL starts nothing. The times, the counter and the last firing are not part of the record.
create table schedules (
    id text collate "C" primary key,
    workspace_id text collate "C" not null references workspaces (id) on delete cascade,
    bot_id text collate "C" not null,
    name text collate "C" not null,
    -- The planned time of the next firing, in milliseconds since 1970; null for a schedule that fires no more.
    next_at bigint,
    -- The last firing: when it was planned, when it happened, its task and what became of it.
    last_planned_at bigint,
    last_fired_at bigint,
    last_task_id text collate "C",
    last_status text collate "C",
    -- The number of failures in a row.
    failures bigint not null,
    created_at bigint not null,
    updated_at bigint not null,
    -- What a person saved, encrypted with the master key.
    sealed text collate "C" not null,
    unique (workspace_id, name),
    foreign key (bot_id, workspace_id) references bots (id, workspace_id) on delete cascade
);
create index schedules_page on schedules (workspace_id, id);
create index schedules_bot on schedules (bot_id);

-- The firings of schedules. A schedule fires once for a planned time, on whichever host.
create table schedule_runs (
    schedule_id text collate "C" not null references schedules (id) on delete cascade,
    planned_at bigint not null,
    workspace_id text collate "C" not null,
    -- Whether a person asked for the firing. Such a firing does not count as a failure of the schedule.
    is_manual boolean not null,
    status text collate "C" not null
        check (status in ('queued', 'running', 'completed', 'failed', 'cancelled', 'skipped', 'missed')),
    fired_at bigint not null,
    -- Null for a firing that started no task.
    task_id text collate "C",
    primary key (schedule_id, planned_at)
);
create index schedule_runs_task on schedule_runs (task_id) where task_id is not null;
create index schedule_runs_queued on schedule_runs (schedule_id, planned_at) where status = 'queued';
create index schedule_runs_running on schedule_runs (schedule_id) where status = 'running';
create index schedule_runs_fired on schedule_runs (fired_at);
