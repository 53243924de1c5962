-- Whether the provider has no files of a sandbox that once ran. Such a row has status `error` and is answered as `lost`;
-- the sandbox is not made anew.
alter table sandbox_instances add column lost boolean not null default false;
