-- Times are UTC milliseconds, ids UUIDv7 text, JSON text. Foreign keys name the workspace too, so that no row ever
-- joins two workspaces. Unique constraints are known by {table}_{column}_{column}_key.

create table settings (
    id bigint primary key check (id = 1),
    -- Grows with every change of what the policy is compiled from.
    generation bigint not null
);
insert into settings (id, generation) values (1, 0);

create table workspaces (
    id text primary key,
    name text not null,
    created_at bigint not null,
    updated_at bigint not null,
    unique (name)
);

create table roles (
    id text primary key,
    workspace_id text not null references workspaces (id),
    name text not null,
    allowed_operations text,
    allowed_tools text,
    scope_constraints text not null,
    created_at bigint not null,
    updated_at bigint not null,
    unique (workspace_id, name),
    unique (id, workspace_id)
);

create table bots (
    id text primary key,
    workspace_id text not null references workspaces (id),
    name text not null,
    description text not null,
    system_prompt text not null,
    model text,
    use_agent_sandbox boolean not null,
    monthly_token_budget bigint,
    created_at bigint not null,
    updated_at bigint not null,
    unique (workspace_id, name),
    unique (id, workspace_id)
);

create table api_keys (
    id text primary key,
    -- Null for a root key, which belongs to the instance.
    workspace_id text references workspaces (id) on delete cascade,
    name text not null,
    kind text not null check (kind in ('root', 'admin', 'operator', 'bot')),
    bot_id text,
    prefix text not null,
    hash text not null,
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
    name text not null,
    version bigint not null,
    sealed text not null,
    created_at bigint not null,
    primary key (name, version)
);

create table plugin_versions (
    plugin text not null,
    version text not null,
    manifest_digest text not null,
    component_digest text not null,
    manifest text not null,
    component blob not null,
    locales text not null,
    created_at bigint not null,
    unique (plugin, manifest_digest, component_digest)
);

create table plugins (
    name text primary key,
    version text not null,
    manifest_digest text not null,
    component_digest text not null,
    updated_at bigint not null,
    -- What serves is stored, always.
    foreign key (name, manifest_digest, component_digest)
        references plugin_versions (plugin, manifest_digest, component_digest)
);

create table resources (
    id text primary key,
    workspace_id text not null references workspaces (id),
    resource_type text not null,
    name text not null,
    config text not null,
    network text not null,
    created_at bigint not null,
    updated_at bigint not null,
    unique (workspace_id, name),
    unique (id, workspace_id)
);

create table credentials (
    id text primary key,
    workspace_id text not null,
    resource_id text not null,
    subject_kind text not null default 'shared',
    subject_id text not null default '',
    auth_method text not null,
    sealed text not null,
    key_version bigint not null,
    given_for text not null,
    status text not null,
    expires_at bigint,
    created_at bigint not null,
    updated_at bigint not null,
    unique (resource_id, subject_kind, subject_id),
    foreign key (resource_id, workspace_id) references resources (id, workspace_id) on delete cascade
);

create table bot_resources (
    id text primary key,
    workspace_id text not null references workspaces (id),
    bot_id text not null,
    resource_id text not null,
    role_id text,
    permissions text,
    scope_constraints text not null,
    delegate text,
    allow_calls text not null,
    allow_subscribe boolean not null,
    limits text,
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
    workspace_id text not null references workspaces (id) on delete cascade,
    -- The API key that asked.
    caller text not null,
    route text not null,
    key text not null,
    body_hash text not null,
    -- Null while the first request is still running.
    status bigint,
    answer text,
    created_at bigint not null,
    primary key (workspace_id, caller, route, key)
);
create index idempotency_keys_created on idempotency_keys (created_at);

create table audit_events (
    writer text not null,
    sequence bigint not null,
    kind text not null,
    request_id text not null,
    workspace_id text,
    bot_id text,
    task_id text,
    resource_id text,
    tool text,
    operation text,
    plugin text,
    plugin_digest text,
    status text,
    code text,
    message text,
    rule text,
    params text,
    duration_ms bigint,
    started_at bigint not null,
    at bigint not null,
    parent_request_id text,
    delegation text,
    flags text,
    key_version bigint not null,
    previous_hash text not null,
    hash text not null,
    primary key (writer, sequence)
);
create index audit_events_request on audit_events (request_id);
create index audit_events_page on audit_events (workspace_id, request_id);

-- These stop accidents. Whoever can write the file can drop them, and is found by the chain.
create trigger audit_events_no_update before update on audit_events
begin
    select raise(abort, 'audit_events is append-only');
end;
create trigger audit_events_no_delete before delete on audit_events
begin
    select raise(abort, 'audit_events is append-only');
end;
