-- The same tables as of SQLite. Times are UTC milliseconds, ids UUIDv7 text, JSON text. Foreign keys name the workspace
-- too, so that no row ever joins two workspaces. Unique constraints are known by {table}_{column}_{column}_key.
-- Every text sorts by its bytes, whatever the database is set to, so that lists and pages are those of SQLite.

create table settings (
    id bigint primary key check (id = 1),
    -- Grows with every change of what the policy is compiled from.
    generation bigint not null
);
insert into settings (id, generation) values (1, 0);

create table workspaces (
    id text collate "C" primary key,
    name text collate "C" not null,
    created_at bigint not null,
    updated_at bigint not null,
    unique (name)
);

create table roles (
    id text collate "C" primary key,
    workspace_id text collate "C" not null references workspaces (id),
    name text collate "C" not null,
    allowed_operations text collate "C",
    allowed_tools text collate "C",
    scope_constraints text collate "C" not null,
    created_at bigint not null,
    updated_at bigint not null,
    unique (workspace_id, name),
    unique (id, workspace_id)
);

create table bots (
    id text collate "C" primary key,
    workspace_id text collate "C" not null references workspaces (id),
    name text collate "C" not null,
    description text collate "C" not null,
    system_prompt text collate "C" not null,
    model text collate "C",
    use_agent_sandbox boolean not null,
    monthly_token_budget bigint,
    created_at bigint not null,
    updated_at bigint not null,
    unique (workspace_id, name),
    unique (id, workspace_id)
);

create table api_keys (
    id text collate "C" primary key,
    -- Null for a root key, which belongs to the instance.
    workspace_id text collate "C" references workspaces (id) on delete cascade,
    name text collate "C" not null,
    kind text collate "C" not null check (kind in ('root', 'admin', 'operator', 'bot')),
    bot_id text collate "C",
    prefix text collate "C" not null,
    hash text collate "C" not null,
    created_at bigint not null,
    unique (hash),
    unique (workspace_id, name),
    foreign key (bot_id, workspace_id) references bots (id, workspace_id) on delete cascade,
    check ((kind = 'root') = (workspace_id is null)),
    check ((kind = 'bot') = (bot_id is not null))
);
create unique index api_keys_name_key on api_keys (name) where workspace_id is null;
create index api_keys_bot on api_keys (bot_id);

create table instance_keys (
    name text collate "C" not null,
    version bigint not null,
    sealed text collate "C" not null,
    created_at bigint not null,
    primary key (name, version)
);

create table plugin_versions (
    plugin text collate "C" not null,
    version text collate "C" not null,
    manifest_digest text collate "C" not null,
    component_digest text collate "C" not null,
    manifest text collate "C" not null,
    component bytea not null,
    locales text collate "C" not null,
    created_at bigint not null,
    unique (plugin, manifest_digest, component_digest)
);

create table plugins (
    name text collate "C" primary key,
    version text collate "C" not null,
    manifest_digest text collate "C" not null,
    component_digest text collate "C" not null,
    updated_at bigint not null,
    -- What serves is stored, always.
    foreign key (name, manifest_digest, component_digest)
        references plugin_versions (plugin, manifest_digest, component_digest)
);

create table resources (
    id text collate "C" primary key,
    workspace_id text collate "C" not null references workspaces (id),
    resource_type text collate "C" not null,
    name text collate "C" not null,
    config text collate "C" not null,
    network text collate "C" not null,
    created_at bigint not null,
    updated_at bigint not null,
    unique (workspace_id, name),
    unique (id, workspace_id)
);

create table credentials (
    id text collate "C" primary key,
    workspace_id text collate "C" not null,
    resource_id text collate "C" not null,
    subject_kind text collate "C" not null default 'shared',
    subject_id text collate "C" not null default '',
    auth_method text collate "C" not null,
    sealed text collate "C" not null,
    key_version bigint not null,
    given_for text collate "C" not null,
    status text collate "C" not null,
    expires_at bigint,
    created_at bigint not null,
    updated_at bigint not null,
    unique (resource_id, subject_kind, subject_id),
    foreign key (resource_id, workspace_id) references resources (id, workspace_id) on delete cascade
);

create table bot_resources (
    id text collate "C" primary key,
    workspace_id text collate "C" not null references workspaces (id),
    bot_id text collate "C" not null,
    resource_id text collate "C" not null,
    role_id text collate "C",
    permissions text collate "C",
    scope_constraints text collate "C" not null,
    delegate text collate "C",
    allow_calls text collate "C" not null,
    allow_subscribe boolean not null,
    limits text collate "C",
    calls_per_minute bigint,
    enabled boolean not null,
    expires_at bigint,
    created_at bigint not null,
    updated_at bigint not null,
    unique (bot_id, resource_id),
    foreign key (bot_id, workspace_id) references bots (id, workspace_id) on delete cascade,
    foreign key (resource_id, workspace_id) references resources (id, workspace_id),
    foreign key (role_id, workspace_id) references roles (id, workspace_id)
);
create index bot_resources_resource on bot_resources (resource_id);
create index bot_resources_role on bot_resources (role_id);

create table idempotency_keys (
    workspace_id text collate "C" not null references workspaces (id) on delete cascade,
    -- The API key that asked.
    caller text collate "C" not null,
    route text collate "C" not null,
    key text collate "C" not null,
    body_hash text collate "C" not null,
    -- Null while the first request is still running.
    status bigint,
    answer text collate "C",
    created_at bigint not null,
    primary key (workspace_id, caller, route, key)
);
create index idempotency_keys_created on idempotency_keys (created_at);

create table audit_events (
    writer text collate "C" not null,
    sequence bigint not null,
    kind text collate "C" not null,
    request_id text collate "C" not null,
    workspace_id text collate "C",
    bot_id text collate "C",
    task_id text collate "C",
    resource_id text collate "C",
    tool text collate "C",
    operation text collate "C",
    plugin text collate "C",
    plugin_digest text collate "C",
    status text collate "C",
    code text collate "C",
    message text collate "C",
    rule text collate "C",
    params text collate "C",
    duration_ms bigint,
    started_at bigint not null,
    at bigint not null,
    parent_request_id text collate "C",
    delegation text collate "C",
    flags text collate "C",
    key_version bigint not null,
    previous_hash text collate "C" not null,
    hash text collate "C" not null,
    primary key (writer, sequence)
);
create index audit_events_request on audit_events (request_id);
create index audit_events_page on audit_events (workspace_id, request_id);

-- These stop accidents. Whoever owns the table can drop them, and is found by the chain.
create function audit_events_refuse() returns trigger language plpgsql as $$
begin
    raise exception 'audit_events is append-only';
end;
$$;
create trigger audit_events_no_update before update on audit_events
for each statement execute function audit_events_refuse();
create trigger audit_events_no_delete before delete on audit_events
for each statement execute function audit_events_refuse();
create trigger audit_events_no_truncate before truncate on audit_events
for each statement execute function audit_events_refuse();
