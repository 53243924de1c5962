-- The commands of sandboxes with their outputs, which are not in the audit. They are deleted with their sandbox.
create table sandbox_outputs (
    -- The call of the command.
    request_id text primary key,
    workspace_id text not null,
    sandbox_id text not null references sandbox_instances (id) on delete cascade,
    -- The size of `sealed`.
    bytes bigint not null,
    -- The command, its state and its outputs, encrypted with the master key.
    sealed text not null
);
create index sandbox_outputs_sandbox on sandbox_outputs (sandbox_id, request_id);
