-- An OAuth provider can belong to one resource. SQLite cannot drop a constraint, so the table is rebuilt. The MAC of a row
-- covers `resource_id` and `server` only if they are not null, so that rows of earlier releases keep their MACs.
create table oauth_providers_rebuilt (
    id text primary key,
    workspace_id text not null references workspaces (id),
    resource_type text not null,
    -- Null for a provider of the resource type.
    resource_id text,
    client_id text not null,
    -- Sealed; null for a public client.
    client_secret text,
    authorization_url text,
    token_url text not null,
    device_authorization_url text,
    scopes text not null,
    -- JSON: what an admin has confirmed of the metadata of the authorization server.
    server text,
    created_at bigint not null,
    updated_at bigint not null,
    mac blob,
    unique (id, workspace_id),
    foreign key (resource_id, workspace_id) references resources (id, workspace_id) on delete cascade
);
insert into oauth_providers_rebuilt (id, workspace_id, resource_type, client_id, client_secret, authorization_url,
        token_url, device_authorization_url, scopes, created_at, updated_at, mac)
    select id, workspace_id, resource_type, client_id, client_secret, authorization_url, token_url,
        device_authorization_url, scopes, created_at, updated_at, mac from oauth_providers;
-- Dropping the table deletes the authorizations under way, which reference it.
create table oauth_flows_kept as select * from oauth_flows;
drop table oauth_providers;
alter table oauth_providers_rebuilt rename to oauth_providers;
insert into oauth_flows select * from oauth_flows_kept;
drop table oauth_flows_kept;
create unique index oauth_providers_workspace_id_resource_type_key on oauth_providers (workspace_id, resource_type)
    where resource_id is null;
create unique index oauth_providers_workspace_id_resource_id_key on oauth_providers (workspace_id, resource_id);

-- What the last look-up of a resource's authorization server has found. An admin confirms it by its digest.
create table oauth_proposals (
    resource_id text primary key,
    workspace_id text not null,
    digest text not null,
    -- JSON.
    proposal text not null,
    created_at bigint not null,
    expires_at bigint not null,
    mac blob,
    foreign key (resource_id, workspace_id) references resources (id, workspace_id) on delete cascade
);
create index oauth_proposals_expires on oauth_proposals (expires_at);

-- The scopes that a server has asked for, and that a credential does not have.
create table missing_scopes (
    credential_id text primary key references credentials (id) on delete cascade,
    workspace_id text not null,
    -- A JSON list.
    scopes text not null,
    noted_at bigint not null,
    mac blob
);
