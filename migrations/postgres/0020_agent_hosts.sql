-- The hosts with connected agents. The MAC covers every column, and no seal counts the rows.
create table agent_hosts (
    node text collate "C" primary key,
    -- Raised by each change of the host's rows in agent_presences.
    version bigint not null,
    -- The end of the host's lease in milliseconds since 1970, by the clock of the database.
    lease_until bigint not null,
    mac bytea
);

-- The resources that the agents of a host serve. A row has no effect unless its host has a lease.
create table agent_presences (
    node text collate "C" not null,
    resource_id text collate "C" not null,
    workspace_id text collate "C" not null,
    mac bytea,
    primary key (node, resource_id),
    foreign key (resource_id, workspace_id) references resources (id, workspace_id) on delete cascade
);
create index agent_presences_workspace on agent_presences (workspace_id);
create index agent_presences_resource on agent_presences (resource_id);
