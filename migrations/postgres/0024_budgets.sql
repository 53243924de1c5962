-- The monthly budgets of workspaces and users, and the monthly credits of bots. The monthly tokens of a bot are in `bots`.
-- The MAC covers every column, and the seal of the workspace counts the rows.
create table budgets (
    id text collate "C" primary key,
    workspace_id text collate "C" not null references workspaces (id) on delete cascade,
    subject text collate "C" not null check (subject in ('workspace', 'bot', 'user', 'each_user')),
    -- The id of the bot, or the app and the user, each preceded by its length. Empty for the other subjects.
    holder text collate "C" not null,
    -- Null for no limit.
    monthly_tokens bigint,
    monthly_credits_millionths bigint,
    created_at bigint not null,
    updated_at bigint not null,
    mac bytea,
    unique (workspace_id, subject, holder)
);
create index budgets_workspace on budgets (workspace_id);

-- What a workspace, a bot or a user has spent in a month (UTC, such as 2026-11). Every charge in a workspace locks the row
-- of the workspace first, so that charges and reservations of the workspace take place one after another.
create table usage_totals (
    workspace_id text collate "C" not null references workspaces (id) on delete cascade,
    subject text collate "C" not null check (subject in ('workspace', 'bot', 'user')),
    holder text collate "C" not null,
    month text collate "C" not null,
    -- All tokens: those of rounds, which are also in the next two columns, and those of calls.
    tokens bigint not null,
    tokens_input bigint not null,
    tokens_output bigint not null,
    credits_millionths bigint not null,
    rounds bigint not null,
    rounds_estimated bigint not null,
    calls bigint not null,
    primary key (workspace_id, subject, holder, month)
);

-- The same usage by bot, task, user and model.
create table usage_rows (
    bot_id text collate "C" not null,
    month text collate "C" not null,
    -- Empty for calls without a task.
    task_id text collate "C" not null,
    -- The SHA-256 of the user and the model; empty without both.
    detail text collate "C" not null,
    workspace_id text collate "C" not null references workspaces (id) on delete cascade,
    -- Like `holder` of a user. Empty for calls without a user.
    user_key text collate "C" not null,
    -- The resource and the model, such as openai/gpt. Empty for calls that are no rounds.
    model text collate "C" not null,
    tokens bigint not null,
    tokens_input bigint not null,
    tokens_output bigint not null,
    credits_millionths bigint not null,
    rounds bigint not null,
    rounds_estimated bigint not null,
    calls bigint not null,
    primary key (bot_id, month, task_id, detail)
);
create index usage_rows_workspace on usage_rows (workspace_id, month);
create index usage_rows_task on usage_rows (bot_id, task_id, month);

-- The most that each running round can cost. A row is deleted in the transaction that charges what the round has used.
create table reservations (
    id text collate "C" primary key,
    workspace_id text collate "C" not null references workspaces (id) on delete cascade,
    bot_id text collate "C" not null,
    user_key text collate "C" not null,
    task_id text collate "C" not null,
    request_id text collate "C" not null,
    model text collate "C" not null,
    month text collate "C" not null,
    tokens_input bigint not null,
    tokens_output bigint not null,
    credits_millionths bigint not null,
    -- The host that runs the round, and the time after which the host is considered dead.
    node text collate "C" not null,
    expires_at bigint not null
);
create index reservations_workspace on reservations (workspace_id, month);
create index reservations_node on reservations (node);
create index reservations_expiry on reservations (expires_at);

insert into usage_totals (workspace_id, subject, holder, month, tokens, tokens_input, tokens_output, credits_millionths,
                          rounds, rounds_estimated, calls)
    select workspace_id, 'bot', bot_id, month, tokens, 0, 0, credits_millionths, 0, 0, calls from bot_usage;
-- Larger numbers than 2^50 could make the sum overflow.
insert into usage_totals (workspace_id, subject, holder, month, tokens, tokens_input, tokens_output, credits_millionths,
                          rounds, rounds_estimated, calls)
    select workspace_id, 'workspace', '', month,
           cast(sum(case when tokens > 1125899906842624 then 1125899906842624 else tokens end) as bigint), 0, 0,
           cast(sum(case when credits_millionths > 1125899906842624 then 1125899906842624 else credits_millionths end)
                as bigint), 0, 0, cast(sum(calls) as bigint)
    from bot_usage group by workspace_id, month;
insert into usage_rows (bot_id, month, task_id, detail, workspace_id, user_key, model, tokens, tokens_input, tokens_output,
                        credits_millionths, rounds, rounds_estimated, calls)
    select bot_id, month, task_id, '', workspace_id, '', '', tokens, 0, 0, credits_millionths, 0, 0, calls
    from task_usage;
drop table bot_usage;
drop table task_usage;
