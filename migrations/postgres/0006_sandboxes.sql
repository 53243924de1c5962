-- What the sandboxes of a workspace may be, as an operator has set it; null for what the server gives to all.
alter table workspaces add column sandbox text collate "C";

-- Sandboxes, one a conversation. There is no reference to the workspace and the bot: a row stays until the provider has
-- deleted the sandbox, whatever becomes of these.
create table sandbox_instances (
    id text collate "C" primary key,
    workspace_id text collate "C" not null,
    bot_id text collate "C" not null,
    provider text collate "C" not null,
    -- The first 16 hex digits of a SHA-256 of the conversation, whose parts stand beside it: the digest alone is
    -- ambiguous.
    sandbox_id text collate "C" not null,
    app_id text collate "C",
    user_id text collate "C",
    chat_id text collate "C",
    -- The data folder whose host has the sandbox; null where every host reaches it.
    node text collate "C",
    status text collate "C" not null
        check (status in ('creating', 'running', 'stopping', 'stopped', 'deleting', 'error')),
    -- Who is working on it, and until when that counts.
    operation text collate "C",
    operation_until bigint,
    last_active_at bigint not null,
    created_at bigint not null,
    -- The limits and the network that it was last started with.
    "limit" text collate "C",
    network text collate "C",
    -- Why it is in error, or why it was not stopped or deleted yet.
    error text collate "C",
    -- Of the deletion.
    attempts bigint not null default 0,
    next_attempt_at bigint,
    unique (workspace_id, provider, sandbox_id)
);
create unique index sandbox_instances_workspace_id_app_id_chat_id_key
    on sandbox_instances (workspace_id, app_id, chat_id) where app_id is not null and chat_id is not null;
create index sandbox_instances_status on sandbox_instances (status, last_active_at);
create index sandbox_instances_bot on sandbox_instances (bot_id);
