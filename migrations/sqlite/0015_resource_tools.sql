-- The tools that servers and agents declare, and the decisions of admins about them. The MAC covers every column, and
-- the seal of the workspace counts the rows.
create table resource_tools (
    id text primary key,
    workspace_id text not null,
    resource_id text not null,
    -- The name that the server or the agent uses.
    original_name text not null,
    -- The part of the tool's name that follows the name of the resource. It never changes.
    slug text not null,
    status text not null check (status in ('approved', 'pending', 'changed', 'rejected', 'invalid', 'gone')),
    reason text,
    -- The SHA-256 of the definition that was declared last, and that definition as JSON.
    digest text not null,
    definition text not null,
    -- The effect that the server or the agent declares, and the effect that an admin has set.
    hint text,
    effect text not null,
    approved_digest text,
    -- The digest of the definition that an admin has rejected.
    rejected_digest text,
    -- The approved definition, if it differs from the definition that was declared last.
    approved_definition text,
    approved_by text,
    approved_at bigint,
    created_at bigint not null,
    updated_at bigint not null,
    mac blob,
    foreign key (resource_id, workspace_id) references resources (id, workspace_id) on delete cascade
);
create index resource_tools_workspace on resource_tools (workspace_id);
create index resource_tools_resource on resource_tools (resource_id);

-- The first successful discovery of the tools at a URL. It decides which tools the configuration of a resource approves.
create table first_discoveries (
    resource_id text primary key,
    workspace_id text not null,
    -- Empty for an agent.
    url text not null,
    discovered_at bigint not null,
    mac blob,
    foreign key (resource_id, workspace_id) references resources (id, workspace_id) on delete cascade
);
create index first_discoveries_workspace on first_discoveries (workspace_id);

-- The result of the last discovery of each resource, and the host that runs a discovery now. The MAC does not cover the
-- claim.
create table discoveries (
    resource_id text primary key,
    workspace_id text not null,
    status text not null check (status in ('never', 'ok', 'failed')),
    last_discovery_at bigint,
    error text,
    -- JSON: what the server says about itself.
    server text,
    protocol text,
    claimed_by text,
    claimed_until bigint,
    mac blob,
    foreign key (resource_id, workspace_id) references resources (id, workspace_id) on delete cascade
);
create index discoveries_workspace on discoveries (workspace_id);
