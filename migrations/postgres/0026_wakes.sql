-- Wakes: which keys have work, and which host runs the turn of a key. A wake permits nothing: the object that the key
-- names says what the turn does.
create table wakes (
    -- The kind and the id of the object that takes turns, such as `task/0198…`.
    key text collate "C" primary key,
    workspace_id text collate "C" not null references workspaces (id) on delete cascade,
    -- In milliseconds since 1970.
    due_at bigint not null,
    -- Raised by each request for a turn, so that the end of a turn notices requests that came while it ran.
    version bigint not null,
    -- The claim of the host that runs the turn; NULL without a claim. A claim that has expired can be replaced.
    claim_id text collate "C",
    claimed_by text collate "C",
    claimed_until bigint,
    -- The number of consecutive turns that failed, and the error of the last one.
    failures bigint not null default 0,
    last_error text collate "C",
    check ((claim_id is null) = (claimed_by is null) and (claim_id is null) = (claimed_until is null))
);
create index wakes_due on wakes (due_at, key);
create index wakes_claimed on wakes (claimed_by) where claimed_by is not null;
create index wakes_failing on wakes (key) where failures > 0;
create index wakes_workspace on wakes (workspace_id);

-- The work that one of the hosts does for all of them, and the host that does it until its lease ends.
create table chores (
    name text collate "C" primary key,
    holder text collate "C" not null,
    -- Raised by each change of the holder.
    fence bigint not null,
    -- In milliseconds since 1970, by the clock of the database.
    held_until bigint not null
);

-- Events. What an event contains is encrypted with the master key.
create table events (
    id text collate "C" primary key,
    workspace_id text collate "C" not null references workspaces (id) on delete cascade,
    -- The position among the events of the workspace; NULL until the event is dispatched.
    sequence bigint,
    event_type text collate "C" not null,
    source_type text collate "C" not null,
    source_id text collate "C" not null,
    -- The bot that the event belongs to; NULL for an event of the platform.
    bot_id text collate "C",
    -- The event that the chain of causes began with, and the number of causes between them.
    root_event_id text collate "C" not null,
    depth bigint not null,
    -- The objects that the event comes from, as a JSON object.
    links text collate "C" not null,
    -- In milliseconds since 1970.
    created_at bigint not null,
    sealed text collate "C" not null,
    constraint events_workspace_id_sequence_key unique (workspace_id, sequence)
);
create index events_workspace on events (workspace_id, id);
create index events_root on events (workspace_id, root_event_id);
create index events_created on events (created_at);
