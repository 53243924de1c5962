-- People also approve steps of workflows: a question of a run, which may name calls of its later steps. The MAC covers the new
-- columns where they are not null, so the approvals that exist keep their MACs.
-- SQLite cannot change a constraint, so the table is rebuilt.
create table approvals_rebuilt (
    id text primary key,
    workspace_id text not null references workspaces (id) on delete cascade,
    kind text not null check (kind in ('call', 'step')),
    -- The SHA-256 that identifies the call or the question, and the SHA-256 of what the calls run.
    digest text not null,
    definition text not null,
    status text not null check (status in ('pending', 'approved', 'denied', 'used', 'expired', 'void')),
    bot_id text not null,
    -- The user on whose behalf the call is made.
    app_id text,
    user_id text,
    -- What a call runs; null for a step of a workflow.
    tool text,
    resource_id text,
    operation text,
    effect text,
    -- JSON: the delegations, the labels of the call, the gates that ask, and the kinds of keys that may decide.
    links text not null,
    labels text not null,
    gates text not null,
    approvers text not null,
    allow_starter boolean not null,
    -- The key or the task that made the call.
    asked_key text,
    asked_task text,
    -- The call that used the approval.
    request_id text,
    created_at bigint not null,
    expires_at bigint not null,
    decided_by text,
    decided_at bigint,
    note text,
    ended_at bigint,
    -- The time of the last change. Within a workspace, each change has a later time than the change before.
    changed_at bigint not null,
    -- The parameters of the calls and the text of a question; null some time after the end.
    sealed text,
    mac blob,
    -- The run, the step and the item of a question; null for a call.
    run_id text,
    run_step text,
    item text,
    -- JSON: the calls of later steps that are approved, each with its digest, and the keys that started the run.
    targets text,
    starters text,
    foreign key (bot_id, workspace_id) references bots (id, workspace_id) on delete cascade,
    check ((kind = 'call') = (tool is not null and resource_id is not null and operation is not null and effect is not null)),
    check ((kind = 'step') = (run_id is not null and run_step is not null and targets is not null and starters is not null))
);
insert into approvals_rebuilt (
    id, workspace_id, kind, digest, definition, status, bot_id, app_id, user_id, tool, resource_id, operation,
    effect, links, labels, gates, approvers, allow_starter, asked_key, asked_task, request_id, created_at, expires_at,
    decided_by, decided_at, note, ended_at, changed_at, sealed, mac
) select
    id, workspace_id, kind, digest, definition, status, bot_id, app_id, user_id, tool, resource_id, operation,
    effect, links, labels, gates, approvers, allow_starter, asked_key, asked_task, request_id, created_at, expires_at,
    decided_by, decided_at, note, ended_at, changed_at, sealed, mac
from approvals;
drop table approvals;
alter table approvals_rebuilt rename to approvals;
-- Two hosts that ask for the same call at the same time agree on one row.
create unique index approvals_workspace_id_digest_key on approvals (workspace_id, digest)
    where status in ('pending', 'approved');
create index approvals_digest on approvals (workspace_id, digest);
create index approvals_status on approvals (workspace_id, status);
create index approvals_bot on approvals (bot_id);
create index approvals_changed on approvals (workspace_id, changed_at);
create index approvals_due on approvals (expires_at) where status in ('pending', 'approved');
create index approvals_ended on approvals (ended_at);
create index approvals_run on approvals (run_id) where run_id is not null;
