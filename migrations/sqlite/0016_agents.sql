-- Keys of the kind `agent` connect agents to one resource. SQLite cannot change a constraint, so the table is rebuilt. The
-- MAC of a row covers `resource_id` only if it is not null, so that rows of earlier releases keep their MACs.
create table api_keys_rebuilt (
    id text primary key,
    -- Null for a root key, which belongs to the instance.
    workspace_id text references workspaces (id) on delete cascade,
    name text not null,
    kind text not null check (kind in ('root', 'admin', 'operator', 'approver', 'bot', 'agent')),
    bot_id text,
    resource_id text,
    prefix text not null,
    hash text not null,
    created_at bigint not null,
    last_used_at bigint,
    mac blob,
    unique (hash),
    unique (workspace_id, name),
    foreign key (bot_id, workspace_id) references bots (id, workspace_id) on delete cascade,
    foreign key (resource_id, workspace_id) references resources (id, workspace_id) on delete cascade,
    check ((kind = 'root') = (workspace_id is null)),
    check ((kind = 'bot') = (bot_id is not null)),
    check ((kind = 'agent') = (resource_id is not null))
);
insert into api_keys_rebuilt (id, workspace_id, name, kind, bot_id, prefix, hash, created_at, last_used_at, mac)
    select id, workspace_id, name, kind, bot_id, prefix, hash, created_at, last_used_at, mac from api_keys;
drop table api_keys;
alter table api_keys_rebuilt rename to api_keys;
create unique index api_keys_name_key on api_keys (name) where workspace_id is null;
create index api_keys_bot on api_keys (bot_id);
create index api_keys_resource on api_keys (resource_id);
