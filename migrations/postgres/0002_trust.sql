-- Who may sign packages of which plugins.
create table trust (
    id text collate "C" primary key,
    public_key text collate "C" not null,
    name_glob text collate "C" not null,
    created_at bigint not null,
    unique (public_key, name_glob)
);
