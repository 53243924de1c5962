-- Keys of the kind `approver` only read and decide approvals. SQLite cannot change a constraint, so the table is rebuilt.
create table api_keys_rebuilt (
    id text primary key,
    -- Null for a root key, which belongs to the instance.
    workspace_id text references workspaces (id) on delete cascade,
    name text not null,
    kind text not null check (kind in ('root', 'admin', 'operator', 'approver', 'bot')),
    bot_id text,
    prefix text not null,
    hash text not null,
    created_at bigint not null,
    last_used_at bigint,
    mac blob,
    unique (hash),
    unique (workspace_id, name),
    foreign key (bot_id, workspace_id) references bots (id, workspace_id) on delete cascade,
    check ((kind = 'root') = (workspace_id is null)),
    check ((kind = 'bot') = (bot_id is not null))
);
insert into api_keys_rebuilt (id, workspace_id, name, kind, bot_id, prefix, hash, created_at, last_used_at, mac)
    select id, workspace_id, name, kind, bot_id, prefix, hash, created_at, last_used_at, mac from api_keys;
drop table api_keys;
alter table api_keys_rebuilt rename to api_keys;
create unique index api_keys_name_key on api_keys (name) where workspace_id is null;
create index api_keys_bot on api_keys (bot_id);

-- The approvals of calls. The MAC covers every column except `sealed`.
create table approvals (
    id text primary key,
    workspace_id text not null references workspaces (id) on delete cascade,
    kind text not null check (kind in ('call')),
    -- The SHA-256 that identifies the call, and the SHA-256 of what the call runs.
    digest text not null,
    definition text not null,
    status text not null check (status in ('pending', 'approved', 'denied', 'used', 'expired', 'void')),
    bot_id text not null,
    -- The user on whose behalf the call is made.
    app_id text,
    user_id text,
    tool text not null,
    resource_id text not null,
    operation text not null,
    effect text not null,
    -- JSON: the delegations, the labels of the call, the gates that ask, and the kinds of keys that may decide.
    links text not null,
    labels text not null,
    gates text not null,
    approvers text not null,
    allow_starter boolean not null,
    -- The key or the task that made the call.
    asked_key text,
    asked_task text,
    -- The call that used the approval.
    request_id text,
    created_at bigint not null,
    expires_at bigint not null,
    decided_by text,
    decided_at bigint,
    note text,
    ended_at bigint,
    -- The time of the last change. Within a workspace, each change has a later time than the change before.
    changed_at bigint not null,
    -- The parameters of the call; null some time after the end.
    sealed text,
    mac blob,
    foreign key (bot_id, workspace_id) references bots (id, workspace_id) on delete cascade
);
-- Two hosts that ask for the same call at the same time agree on one row.
create unique index approvals_workspace_id_digest_key on approvals (workspace_id, digest)
    where status in ('pending', 'approved');
create index approvals_digest on approvals (workspace_id, digest);
create index approvals_status on approvals (workspace_id, status);
create index approvals_bot on approvals (bot_id);
create index approvals_changed on approvals (workspace_id, changed_at);
create index approvals_due on approvals (expires_at) where status in ('pending', 'approved');
create index approvals_ended on approvals (ended_at);

-- One row for each approval that permits a call now. The seal of the workspace counts these rows, so that a row that is
-- restored or added with SQL permits nothing.
create table approval_grants (
    id text primary key,
    workspace_id text not null references workspaces (id) on delete cascade,
    digest text not null,
    expires_at bigint not null,
    mac blob
);
create index approval_grants_workspace on approval_grants (workspace_id);
