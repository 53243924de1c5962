-- Webhooks: routes by which systems outside make events. The MAC covers every column except the secret, and the seal of the
-- workspace counts the rows.
create table webhooks (
    id text collate "C" primary key,
    workspace_id text collate "C" not null references workspaces (id) on delete cascade,
    name text collate "C" not null,
    -- The type of the events, without the prefix `custom.`.
    event text collate "C" not null,
    -- The bot to which the events belong; null for events of the platform.
    bot_id text collate "C",
    kind text collate "C" not null check (kind in ('hmac_sha256', 'token')),
    -- The header of the signature, and the text before its hex digits; null for a token.
    signature_header text collate "C",
    signature_prefix text collate "C",
    -- The headers that become part of the event, as a JSON list.
    headers text collate "C" not null,
    -- The header whose value makes one event of repeated requests; null if each request makes an event.
    dedupe_header text collate "C",
    created_at bigint not null,
    updated_at bigint not null,
    -- The secret, encrypted with the master key, and the time at which it was made. The record is bound to the time, so that
    -- an earlier secret cannot be restored.
    secret_created_at bigint not null,
    sealed text collate "C" not null,
    mac bytea,
    constraint webhooks_workspace_id_name_key unique (workspace_id, name),
    foreign key (bot_id, workspace_id) references bots (id, workspace_id) on delete cascade
);
create index webhooks_page on webhooks (workspace_id, id);
create index webhooks_bot on webhooks (bot_id);

-- The requests that have made events, so that a repeated request makes none.
create table webhook_receipts (
    webhook_id text collate "C" not null references webhooks (id) on delete cascade,
    -- The SHA-256 of the name and the value of the header.
    request text collate "C" not null,
    workspace_id text collate "C" not null,
    event_id text collate "C" not null,
    received_at bigint not null,
    primary key (webhook_id, request)
);
create index webhook_receipts_received on webhook_receipts (received_at);
