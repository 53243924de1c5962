-- The sessions of browsers in the console. The id is the SHA-256 of the session's cookie. The MAC covers every column except
-- `messages`.
create table console_sessions (
    id text collate "C" primary key,
    key_id text collate "C" not null references api_keys (id) on delete cascade,
    -- The hash of the key at the time of the log-in. A rotation of the key ends the session.
    key_hash text collate "C" not null,
    created_at bigint not null,
    last_used_at bigint not null,
    ends_at bigint not null,
    -- A JSON list of texts that the next page shows.
    messages text collate "C" not null,
    mac bytea
);
create index console_sessions_key on console_sessions (key_id);
create index console_sessions_ends on console_sessions (ends_at);

-- Links that log a browser in, once. The id is the SHA-256 of the text in the link.
create table console_tickets (
    id text collate "C" primary key,
    key_id text collate "C" not null references api_keys (id) on delete cascade,
    key_hash text collate "C" not null,
    expires_at bigint not null,
    mac bytea
);
create index console_tickets_key on console_tickets (key_id);
create index console_tickets_expires on console_tickets (expires_at);
