-- Subscriptions: which events start tasks of a bot. The MAC covers every column, and the seal of the workspace counts the
-- rows, so that a row that is added, edited or restored with SQL starts nothing.
create table subscriptions (
    id text collate "C" primary key,
    workspace_id text collate "C" not null references workspaces (id) on delete cascade,
    bot_id text collate "C" not null,
    -- A glob over the types of events.
    pattern text collate "C" not null,
    -- What the bot is to do, with placeholders for the event.
    instruction text collate "C" not null,
    -- Whose events match, as a JSON list.
    sources text collate "C" not null,
    -- What the tasks may do less than the bot, as a JSON object; null for nothing.
    narrow text collate "C",
    active boolean not null,
    made_by_kind text collate "C" not null check (made_by_kind in ('key', 'plugin')),
    -- The id of the key, which may have been deleted, or the name of the plugin.
    made_by_id text collate "C" not null,
    -- The keys that made or changed the subscription, as a JSON list.
    starters text collate "C" not null,
    -- In milliseconds since 1970.
    expires_at bigint,
    created_at bigint not null,
    updated_at bigint not null,
    mac bytea,
    foreign key (bot_id, workspace_id) references bots (id, workspace_id) on delete cascade
);
create index subscriptions_page on subscriptions (workspace_id, id);
create index subscriptions_bot on subscriptions (bot_id);

-- The last sequence of an event in each workspace. The row is also the lock of the deliveries of the workspace.
create table event_counters (
    workspace_id text collate "C" primary key references workspaces (id) on delete cascade,
    sequence bigint not null
);

-- Deliveries of events to their targets. A delivery starts nothing by itself: its turn reads the event, whose data is sealed,
-- and the target, which is authenticated, and judges again whether they match.
create table deliveries (
    id text collate "C" primary key,
    workspace_id text collate "C" not null references workspaces (id) on delete cascade,
    event_id text collate "C" not null references events (id) on delete cascade,
    target_kind text collate "C" not null check (target_kind in ('subscription', 'trigger')),
    target_id text collate "C" not null,
    -- The bot that works for the target.
    bot_id text collate "C" not null,
    root_event_id text collate "C" not null,
    status text collate "C" not null check (status in ('pending', 'done', 'dead')),
    -- The number of turns that tried to start something.
    attempts bigint not null,
    -- The time of the next turn, in milliseconds since 1970; null if the delivery waits for no time.
    next_at bigint,
    -- Why the delivery is dead.
    reason text collate "C",
    -- The parts of the event's data that do not fit the input of a workflow, as a JSON list of pointers.
    invalid_paths text collate "C",
    -- What the delivery has started.
    task_id text collate "C",
    run_id text collate "C",
    created_at bigint not null,
    pending_since bigint not null,
    ended_at bigint,
    constraint deliveries_event_id_target_kind_target_id_key unique (event_id, target_kind, target_id)
);
create index deliveries_page on deliveries (workspace_id, id);
create unique index deliveries_task on deliveries (task_id) where task_id is not null;
create unique index deliveries_run on deliveries (run_id) where run_id is not null;
create index deliveries_pending on deliveries (bot_id, id) where status = 'pending';
create index deliveries_triggers on deliveries (workspace_id, id) where status = 'pending' and target_kind = 'trigger';
create index deliveries_target on deliveries (target_kind, target_id) where status = 'pending';
create index deliveries_root on deliveries (workspace_id, root_event_id, target_kind, target_id);

-- Runs that wait for an event search the events of its type.
create index events_type on events (workspace_id, event_type, sequence, created_at) where sequence is not null;

-- Events of before this migration are not dispatched. They get their sequences here, and no wakes.
update events set sequence = numbered.number
    from (select id, row_number() over (partition by workspace_id order by id) as number from events) as numbered
    where numbered.id = events.id;
insert into event_counters (workspace_id, sequence)
    select workspace_id, max(sequence) from events group by workspace_id;
