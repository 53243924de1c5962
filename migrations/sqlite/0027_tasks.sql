-- Sessions: the tasks of one conversation.
create table sessions (
    id text primary key,
    workspace_id text not null references workspaces (id) on delete cascade,
    bot_id text not null,
    app_id text not null,
    user_id text not null,
    chat_id text not null,
    -- In milliseconds since 1970.
    created_at bigint not null,
    used_at bigint not null,
    expired_at bigint,
    -- The labels of what its tasks have read, with spaces between them.
    labels text not null,
    foreign key (bot_id, workspace_id) references bots (id, workspace_id) on delete cascade
);
-- A conversation has one open session.
create unique index sessions_workspace_id_app_id_chat_id_key on sessions (workspace_id, app_id, chat_id)
    where expired_at is null;
create index sessions_bot on sessions (bot_id);
create index sessions_page on sessions (workspace_id, id);

-- Tasks. The sealed record has the instruction, the key and the limits, so that a row that is added with SQL starts nothing.
create table tasks (
    id text primary key,
    workspace_id text not null references workspaces (id) on delete cascade,
    bot_id text not null,
    -- Null for a task whose caller keeps the conversation.
    session_id text references sessions (id) on delete cascade,
    -- The task of another bot that started this one.
    parent_id text,
    status text not null check (status in ('queued', 'running', 'waiting', 'completed', 'failed', 'cancelled')),
    -- Why the task failed.
    code text,
    -- The key that started the task, which may have been deleted. Null for a task that no key started.
    key_id text,
    -- The number of steps that have ended, and the tokens of the rounds.
    steps bigint not null,
    input_tokens bigint not null,
    output_tokens bigint not null,
    -- In milliseconds since 1970.
    created_at bigint not null,
    started_at bigint,
    -- The time at which a caller asked to cancel the task.
    cancelled_at bigint,
    ended_at bigint,
    -- What the task waits for, as kind and id with a slash between them, and since when.
    waiting_for text,
    waiting_since bigint,
    -- The time for which the task has waited before, in milliseconds. It does not count for the limit of its time.
    waited_ms bigint not null,
    -- The labels of what the task has read, with spaces between them. The sealed record and the steps have them too.
    labels text not null,
    -- The instruction, the limits and the result, encrypted with the master key.
    sealed text not null,
    foreign key (bot_id, workspace_id) references bots (id, workspace_id) on delete cascade
);
-- A session runs one task at a time.
create unique index tasks_session_id_key on tasks (session_id) where ended_at is null;
create index tasks_page on tasks (workspace_id, id);
create index tasks_bot on tasks (bot_id, id);
create index tasks_session on tasks (session_id, id);
create index tasks_parent on tasks (parent_id) where parent_id is not null;
create index tasks_unended on tasks (workspace_id) where ended_at is null;
create index tasks_ended on tasks (ended_at) where ended_at is not null;

-- The steps of tasks: rounds with models and calls of tools.
create table task_steps (
    task_id text not null references tasks (id) on delete cascade,
    sequence bigint not null,
    workspace_id text not null,
    kind text not null check (kind in ('round', 'call')),
    -- The call in the audit; null for a call that never reached the pipeline.
    request_id text,
    -- The name of the tool, as the model wrote it.
    tool text,
    -- The effect of the tool when the call was planned.
    effect text,
    -- Null for a call that has not ended.
    status text,
    started_at bigint not null,
    ended_at bigint,
    -- What was asked and answered, encrypted with the master key.
    sealed text not null,
    primary key (task_id, sequence)
);
