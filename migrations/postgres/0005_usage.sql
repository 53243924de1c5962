-- What the calls of a bot have cost in a month (UTC, such as 2026-11). One row a bot and month, so that one statement can
-- say whether a further call fits into the bot's budget, however many ask at once.
create table bot_usage (
    bot_id text collate "C" not null,
    workspace_id text collate "C" not null,
    month text collate "C" not null,
    tokens bigint not null,
    credits_millionths bigint not null,
    calls bigint not null,
    primary key (bot_id, month),
    foreign key (bot_id, workspace_id) references bots (id, workspace_id) on delete cascade
);

-- The same by the task that the caller has named; empty for calls of none.
create table task_usage (
    bot_id text collate "C" not null,
    workspace_id text collate "C" not null,
    month text collate "C" not null,
    task_id text collate "C" not null,
    tokens bigint not null,
    credits_millionths bigint not null,
    calls bigint not null,
    primary key (bot_id, month, task_id),
    foreign key (bot_id, workspace_id) references bots (id, workspace_id) on delete cascade
);
