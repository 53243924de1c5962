-- Which plugin a resource type or a tool's name belongs to. A plugin owns the names of the first version that serves;
-- another plugin gets one only by an approval.
create table owners (
    kind text not null check (kind in ('type', 'tool')),
    name text not null,
    plugin text not null,
    -- The owner at the time when this table was filled from an older database. Credentials from before then do not name
    -- their plugin: they were given for this one. Null for names that came later.
    legacy_plugin text,
    -- When the plugin became the owner.
    created_at bigint not null,
    primary key (kind, name)
);
create index owners_plugin on owners (plugin);

-- Set while `owners` still has to be filled from the versions that served before this table existed. Their names stand in
-- manifests, which SQL cannot read.
alter table settings add column owners_due boolean not null default false;
update settings set owners_due = exists (select 1 from plugins);

-- The resource types that packages signed by the key may bring, as a glob. What was trusted before goes on for all types.
alter table trust add column type_glob text not null default '*';
