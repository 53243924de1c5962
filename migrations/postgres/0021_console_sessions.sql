-- The sessions of browsers in the console, and the links that begin one. The ids are hashes, so a copy of the database logs
-- nobody in. The MAC covers every column, and no seal counts the rows.
create table console_sessions (
    -- The hex-encoded SHA-256 of the token in the browser's cookie.
    id text collate "C" primary key,
    key_id text collate "C" not null,
    -- The hash of the key at the log-in. A rotated key has another hash, which ends the session.
    key_hash text collate "C" not null,
    -- The last use in milliseconds since 1970, rounded to the minute.
    last_used_at bigint not null,
    ends_at bigint not null,
    -- The messages that the next page shows, as JSON.
    messages text collate "C" not null,
    mac bytea
);
create index console_sessions_key on console_sessions (key_id);
create index console_sessions_ends on console_sessions (ends_at);

create table console_tickets (
    -- The hex-encoded SHA-256 of the token in the link.
    id text collate "C" primary key,
    key_id text collate "C" not null,
    key_hash text collate "C" not null,
    expires_at bigint not null,
    mac bytea
);
create index console_tickets_key on console_tickets (key_id);
create index console_tickets_expires on console_tickets (expires_at);
