-- The tools that servers and agents declare, and the decisions of admins about them. The MAC covers every column, and
-- the seal of the workspace counts the rows.
create table resource_tools (
    id text collate "C" primary key,
    workspace_id text collate "C" not null,
    resource_id text collate "C" not null,
    -- The name that the server or the agent uses.
    original_name text collate "C" not null,
    -- The part of the tool's name that follows the name of the resource. It never changes.
    slug text collate "C" not null,
    status text collate "C" not null check (status in ('approved', 'pending', 'changed', 'rejected', 'invalid', 'gone')),
    reason text collate "C",
    -- The SHA-256 of the definition that was declared last, and that definition as JSON.
    digest text collate "C" not null,
    definition text collate "C" not null,
    -- The effect that the server or the agent declares, and the effect that an admin has set.
    hint text collate "C",
    effect text collate "C" not null,
    approved_digest text collate "C",
    -- The digest of the definition that an admin has rejected.
    rejected_digest text collate "C",
    -- The approved definition, if it differs from the definition that was declared last.
    approved_definition text collate "C",
    approved_by text collate "C",
    approved_at bigint,
    created_at bigint not null,
    updated_at bigint not null,
    mac bytea,
    foreign key (resource_id, workspace_id) references resources (id, workspace_id) on delete cascade
);
create index resource_tools_workspace on resource_tools (workspace_id);
create index resource_tools_resource on resource_tools (resource_id);

-- The first successful discovery of the tools at a URL. It decides which tools the configuration of a resource approves.
create table first_discoveries (
    resource_id text collate "C" primary key,
    workspace_id text collate "C" not null,
    -- Empty for an agent.
    url text collate "C" not null,
    discovered_at bigint not null,
    mac bytea,
    foreign key (resource_id, workspace_id) references resources (id, workspace_id) on delete cascade
);
create index first_discoveries_workspace on first_discoveries (workspace_id);

-- The result of the last discovery of each resource, and the host that runs a discovery now. The MAC does not cover the
-- claim.
create table discoveries (
    resource_id text collate "C" primary key,
    workspace_id text collate "C" not null,
    status text collate "C" not null check (status in ('never', 'ok', 'failed')),
    last_discovery_at bigint,
    error text collate "C",
    -- JSON: what the server says about itself.
    server text collate "C",
    protocol text collate "C",
    claimed_by text collate "C",
    claimed_until bigint,
    mac bytea,
    foreign key (resource_id, workspace_id) references resources (id, workspace_id) on delete cascade
);
create index discoveries_workspace on discoveries (workspace_id);
