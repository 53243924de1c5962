-- Workflows, their versions and their triggers. The MACs cover every column but the document of a version, whose digest is
-- covered, and the seal of the workspace counts the rows: a row that is added, edited or restored with SQL starts nothing.
create table workflows (
    id text collate "C" primary key,
    workspace_id text collate "C" not null references workspaces (id) on delete cascade,
    -- The bot as which the workflow runs. Triggers and schedules are granted for this bot, so it never changes.
    bot_id text collate "C" not null,
    name text collate "C" not null,
    -- The number of the newest version.
    version bigint not null,
    enabled boolean not null,
    -- In milliseconds since 1970.
    created_at bigint not null,
    updated_at bigint not null,
    mac bytea,
    unique (workspace_id, name),
    unique (id, workspace_id),
    -- A bot with workflows cannot be deleted.
    foreign key (bot_id, workspace_id) references bots (id, workspace_id)
);
create index workflows_page on workflows (workspace_id, id);
create index workflows_bot on workflows (bot_id);

-- The versions of workflows. A version never changes, and a run keeps its version to its end.
create table workflow_versions (
    id text collate "C" primary key,
    workspace_id text collate "C" not null,
    workflow_id text collate "C" not null,
    -- 1 for the first version.
    version bigint not null,
    -- `text` for a document that was saved as text, `json` for one that was saved as an object.
    format text collate "C" not null check (format in ('text', 'json')),
    -- The SHA-256 of the document.
    digest text collate "C" not null,
    -- The key that saved the version, which may have been deleted.
    saved_by text collate "C" not null,
    created_at bigint not null,
    mac bytea,
    document text collate "C" not null,
    unique (workflow_id, version),
    foreign key (workflow_id, workspace_id) references workflows (id, workspace_id) on delete cascade
);

-- Triggers: which events start runs of a workflow.
create table workflow_triggers (
    id text collate "C" primary key,
    workspace_id text collate "C" not null,
    workflow_id text collate "C" not null,
    -- A glob over the types of events.
    event_pattern text collate "C" not null,
    -- A text for the run, with placeholders for the event.
    instruction text collate "C" not null,
    -- Whose events match, as a JSON list.
    sources text collate "C" not null,
    -- What the runs may do less than the bot, as a JSON object; null for nothing.
    narrow text collate "C",
    enabled boolean not null,
    -- The keys that made or changed the trigger, as a JSON list. They may have been deleted.
    starters text collate "C" not null,
    created_at bigint not null,
    updated_at bigint not null,
    mac bytea,
    foreign key (workflow_id, workspace_id) references workflows (id, workspace_id) on delete cascade
);
create index workflow_triggers_workflow on workflow_triggers (workflow_id, id);
create index workflow_triggers_workspace on workflow_triggers (workspace_id);
