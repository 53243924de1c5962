-- Keys of the kind `approver` only read and decide approvals.
alter table api_keys drop constraint api_keys_kind_check;
alter table api_keys add constraint api_keys_kind_check
    check (kind in ('root', 'admin', 'operator', 'approver', 'bot'));

-- The approvals of calls. The MAC covers every column except `sealed`.
create table approvals (
    id text collate "C" primary key,
    workspace_id text collate "C" not null references workspaces (id) on delete cascade,
    kind text collate "C" not null check (kind in ('call')),
    -- The SHA-256 that identifies the call, and the SHA-256 of what the call runs.
    digest text collate "C" not null,
    definition text collate "C" not null,
    status text collate "C" not null check (status in ('pending', 'approved', 'denied', 'used', 'expired', 'void')),
    bot_id text collate "C" not null,
    -- The user on whose behalf the call is made.
    app_id text collate "C",
    user_id text collate "C",
    tool text collate "C" not null,
    resource_id text collate "C" not null,
    operation text collate "C" not null,
    effect text collate "C" not null,
    -- JSON: the delegations, the labels of the call, the gates that ask, and the kinds of keys that may decide.
    links text collate "C" not null,
    labels text collate "C" not null,
    gates text collate "C" not null,
    approvers text collate "C" not null,
    allow_starter boolean not null,
    -- The key or the task that made the call.
    asked_key text collate "C",
    asked_task text collate "C",
    -- The call that used the approval.
    request_id text collate "C",
    created_at bigint not null,
    expires_at bigint not null,
    decided_by text collate "C",
    decided_at bigint,
    note text collate "C",
    ended_at bigint,
    -- The time of the last change. Within a workspace, each change has a later time than the change before.
    changed_at bigint not null,
    -- The parameters of the call; null some time after the end.
    sealed text collate "C",
    mac bytea,
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
    id text collate "C" primary key,
    workspace_id text collate "C" not null references workspaces (id) on delete cascade,
    digest text collate "C" not null,
    expires_at bigint not null,
    mac bytea
);
create index approval_grants_workspace on approval_grants (workspace_id);
