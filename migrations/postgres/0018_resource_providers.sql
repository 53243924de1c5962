-- An OAuth provider can belong to one resource. The MAC of a row covers `resource_id` and `server` only if they are not
-- null, so that rows of earlier releases keep their MACs.

-- Null for a provider of the resource type.
alter table oauth_providers add column resource_id text collate "C";
-- JSON: what an admin has confirmed of the metadata of the authorization server.
alter table oauth_providers add column server text collate "C";
alter table oauth_providers add constraint oauth_providers_resource_fkey
    foreign key (resource_id, workspace_id) references resources (id, workspace_id) on delete cascade;
alter table oauth_providers drop constraint oauth_providers_workspace_id_resource_type_key;
create unique index oauth_providers_workspace_id_resource_type_key on oauth_providers (workspace_id, resource_type)
    where resource_id is null;
create unique index oauth_providers_workspace_id_resource_id_key on oauth_providers (workspace_id, resource_id);

-- What the last look-up of a resource's authorization server has found. An admin confirms it by its digest.
create table oauth_proposals (
    resource_id text collate "C" primary key,
    workspace_id text collate "C" not null,
    digest text collate "C" not null,
    -- JSON.
    proposal text collate "C" not null,
    created_at bigint not null,
    expires_at bigint not null,
    mac bytea,
    foreign key (resource_id, workspace_id) references resources (id, workspace_id) on delete cascade
);
create index oauth_proposals_expires on oauth_proposals (expires_at);

-- The scopes that a server has asked for, and that a credential does not have.
create table missing_scopes (
    credential_id text collate "C" primary key references credentials (id) on delete cascade,
    workspace_id text collate "C" not null,
    -- A JSON list.
    scopes text collate "C" not null,
    noted_at bigint not null,
    mac bytea
);
