-- Where tokens of a type come from, as an admin has confirmed it.
create table oauth_providers (
    id text collate "C" primary key,
    workspace_id text collate "C" not null references workspaces (id),
    resource_type text collate "C" not null,
    client_id text collate "C" not null,
    -- Sealed; null for a public client.
    client_secret text collate "C",
    authorization_url text collate "C",
    token_url text collate "C" not null,
    device_authorization_url text collate "C",
    scopes text collate "C" not null,
    created_at bigint not null,
    updated_at bigint not null,
    unique (workspace_id, resource_type),
    unique (id, workspace_id)
);

-- Authorizations under way. What is secret of them is sealed or a hash.
create table oauth_flows (
    id text collate "C" primary key,
    workspace_id text collate "C" not null,
    resource_id text collate "C" not null,
    provider_id text collate "C" not null,
    -- The API key that asked.
    key_id text collate "C" not null,
    auth_method text collate "C" not null,
    -- What the credential will be given for.
    given_for text collate "C" not null,
    -- started, begun, pending, taken, done, failed.
    status text collate "C" not null,
    ticket_hash text collate "C",
    state_hash text collate "C",
    browser_hash text collate "C",
    -- The PKCE verifier, or the device code; null before the begin page was opened.
    sealed text collate "C",
    -- Why it failed.
    message text collate "C",
    poll_interval_s bigint,
    next_poll_at bigint,
    created_at bigint not null,
    expires_at bigint not null,
    unique (ticket_hash),
    unique (state_hash),
    foreign key (resource_id, workspace_id) references resources (id, workspace_id) on delete cascade,
    foreign key (provider_id, workspace_id) references oauth_providers (id, workspace_id) on delete cascade
);
create index oauth_flows_due on oauth_flows (status, next_poll_at);
create index oauth_flows_expires on oauth_flows (expires_at);

-- Until when one host has taken it on itself to refresh the credential.
alter table credentials add column refreshing_until bigint;

-- Changes of what is permitted are few among the calls.
create index audit_events_changes on audit_events (workspace_id, request_id) where flags = 'change';
