-- Who may sign packages of which plugins.
create table trust (
    id text primary key,
    public_key text not null,
    name_glob text not null,
    created_at bigint not null,
    unique (public_key, name_glob)
);
