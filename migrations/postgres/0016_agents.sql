-- Keys of the kind `agent` connect agents to one resource. The MAC of a row covers `resource_id` only if it is not null, so
-- that rows of earlier releases keep their MACs.
alter table api_keys add column resource_id text collate "C";
alter table api_keys drop constraint api_keys_kind_check;
alter table api_keys add constraint api_keys_kind_check
    check (kind in ('root', 'admin', 'operator', 'approver', 'bot', 'agent'));
alter table api_keys add constraint api_keys_agent_check check ((kind = 'agent') = (resource_id is not null));
alter table api_keys add constraint api_keys_resource_fkey
    foreign key (resource_id, workspace_id) references resources (id, workspace_id) on delete cascade;
create index api_keys_resource on api_keys (resource_id);
