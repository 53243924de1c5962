-- Runs of workflows. The sealed record has the input and everything else that a run is about, bound to the other columns that
-- say what the run is, so that a row that is added or edited with SQL starts nothing.
create table runs (
    id text collate "C" primary key,
    workspace_id text collate "C" not null references workspaces (id) on delete cascade,
    workflow_id text collate "C" not null,
    -- The name of the workflow, which never changes.
    workflow text collate "C" not null,
    -- The version of the definition, which the run keeps to its end.
    version bigint not null,
    bot_id text collate "C" not null,
    status text collate "C" not null
        check (status in ('queued', 'running', 'waiting', 'paused', 'undoing', 'completed', 'failed', 'cancelled')),
    -- 1, and one more for each time that a person has retried the run.
    attempt bigint not null,
    started_by_kind text collate "C" not null check (started_by_kind in ('key', 'trigger', 'schedule', 'run')),
    -- The id of what started the run, which may have been deleted.
    started_by_id text collate "C" not null,
    -- The event and the delivery that started the run.
    event_id text collate "C",
    delivery_id text collate "C",
    -- The run whose step started this one.
    parent_run_id text collate "C",
    -- Runs of a workflow with the same key share its limit of concurrency.
    concurrency_key text collate "C",
    -- What a queued run lacks: room among the runs of its workspace, or of its workflow with the same key; null before its
    -- first turn.
    awaits text collate "C" check (awaits in ('workspace', 'key')),
    -- What a person has asked for; null for nothing.
    asked text collate "C" check (asked in ('pause', 'cancel', 'cancel_and_undo')),
    -- Why the run failed.
    code text collate "C",
    -- The labels of what the run has read, with spaces between them. The sealed records have them too.
    labels text collate "C" not null,
    -- In milliseconds since 1970.
    created_at bigint not null,
    started_at bigint,
    -- When the time-out of the run is over.
    deadline_at bigint,
    ended_at bigint,
    sealed text collate "C" not null,
    foreign key (workflow_id, workspace_id) references workflows (id, workspace_id) on delete cascade
);
create index runs_page on runs (workspace_id, id);
create index runs_workflow on runs (workflow_id, id);
create index runs_bot on runs (bot_id, id);
create index runs_parent on runs (parent_run_id) where parent_run_id is not null;
create unique index runs_delivery_id_key on runs (delivery_id) where delivery_id is not null;
create index runs_unended on runs (workspace_id, status) where ended_at is null;
create index runs_concurrency on runs (workflow_id, concurrency_key) where ended_at is null;
create index runs_ended on runs (ended_at) where ended_at is not null;

-- The journal of runs: one row for each attempt of a step.
create table run_steps (
    -- The columns run_id, phase, step, item, run_attempt and attempt in one text.
    position text collate "C" primary key,
    run_id text collate "C" not null references runs (id) on delete cascade,
    -- `do`, or `undo` for the call that undoes the step.
    phase text collate "C" not null check (phase in ('do', 'undo')),
    step text collate "C" not null,
    -- The items of the blocks around the step, such as `3.0`; empty outside of `each`.
    item text collate "C" not null,
    -- The attempt of the run to which the row belongs.
    run_attempt bigint not null,
    -- 1 for the first attempt of the step in this attempt of the run.
    attempt bigint not null,
    workspace_id text collate "C" not null,
    kind text collate "C" not null,
    status text collate "C" not null check (status in
        ('running', 'waiting', 'succeeded', 'failed', 'skipped', 'cancelled', 'uncertain', 'undone')),
    -- The effect of the tool when the attempt was planned.
    effect text collate "C",
    -- Why the attempt failed.
    code text collate "C",
    -- What the attempt has made: a call in the audit, a task, a run, an approval.
    request_id text collate "C",
    task_id text collate "C",
    child_run_id text collate "C",
    approval_id text collate "C",
    -- Why the run has asked the attempt to stop; null if it has not.
    stopping text collate "C" check (stopping in ('cancel', 'timeout')),
    -- The time until which the attempt waits.
    wait_until bigint,
    -- The type of the event for which the attempt waits.
    wait_event text collate "C",
    started_at bigint not null,
    ended_at bigint,
    -- The parameters and the result, encrypted with the master key.
    sealed text collate "C" not null
);
create index run_steps_run on run_steps (run_id, started_at);
create index run_steps_task on run_steps (task_id) where task_id is not null;
create index run_steps_child on run_steps (child_run_id) where child_run_id is not null;
create index run_steps_approval on run_steps (approval_id) where approval_id is not null;
create index run_steps_event on run_steps (workspace_id, wait_event) where wait_event is not null and ended_at is null;

-- The runs that schedules have started.
alter table schedules add column last_run_id text collate "C";
alter table schedule_runs add column run_id text collate "C";
create index schedule_runs_run on schedule_runs (run_id) where run_id is not null;
