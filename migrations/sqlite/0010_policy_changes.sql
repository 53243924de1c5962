-- Which rows of the policy each change is about, so that a host reads only these. A row here grants nothing: a host
-- verifies what it reads against the seals of policy_seals.
create table policy_changes (
    -- The generation of settings that this change made.
    number bigint not null,
    ordinal bigint not null,
    -- The scope of the row, and its generation with the change.
    scope text not null,
    generation bigint not null,
    -- The table of the row, or `all` if the policy must be read as a whole.
    kind text not null,
    -- The primary key of the row, its parts separated by slashes.
    id text not null,
    primary key (number, ordinal)
);
