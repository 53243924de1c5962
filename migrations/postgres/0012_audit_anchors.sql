-- Where the chain of a writer begins after rows up to `last_sequence` were moved into the archive. Each row covers the
-- rows from `first_sequence` on, and is signed by the key of the audit's heads, because a program that can write the
-- database can insert a row here. Verification accepts a signed anchor only.
create table audit_anchors (
    writer text collate "C" not null,
    first_sequence bigint not null,
    -- The hash of the row before the first archived row, and of the last archived row.
    previous_hash text collate "C" not null,
    last_sequence bigint not null,
    last_hash text collate "C" not null,
    -- The time of the last archived row.
    last_at bigint not null,
    rows bigint not null,
    -- The SHA-256 digest of the manifest of the archived segment.
    manifest_digest text collate "C" not null,
    archived_at bigint not null,
    key_version bigint not null,
    signature text collate "C" not null,
    primary key (writer, last_sequence)
);

-- These stop accidents, like those of audit_rows. The tables stay append-only, except that rows which an anchor covers can
-- be deleted.
create function audit_anchors_refuse() returns trigger language plpgsql as $$
begin
    raise exception 'audit_anchors is append-only';
end;
$$;
create trigger audit_anchors_no_update before update on audit_anchors
for each statement execute function audit_anchors_refuse();
create trigger audit_anchors_no_delete before delete on audit_anchors
for each statement execute function audit_anchors_refuse();
create trigger audit_anchors_no_truncate before truncate on audit_anchors
for each statement execute function audit_anchors_refuse();

create or replace function audit_rows_refuse() returns trigger language plpgsql as $$
begin
    if tg_op = 'DELETE' then
        if not exists (
            select 1 from deleted where not exists (
                select 1 from audit_anchors as anchor
                where anchor.writer = deleted.writer and anchor.last_sequence >= deleted.sequence
            )
        ) then
            return null;
        end if;
    end if;
    raise exception 'audit_rows is append-only';
end;
$$;
drop trigger audit_rows_no_delete on audit_rows;
create trigger audit_rows_no_delete after delete on audit_rows referencing old table as deleted
for each statement execute function audit_rows_refuse();

create or replace function audit_events_refuse() returns trigger language plpgsql as $$
begin
    if tg_op = 'DELETE' then
        if not exists (
            select 1 from deleted where not exists (
                select 1 from audit_anchors as anchor
                where anchor.writer = deleted.writer and anchor.last_sequence >= deleted.sequence
            )
        ) then
            return null;
        end if;
    end if;
    raise exception 'audit_events is append-only';
end;
$$;
drop trigger audit_events_no_delete on audit_events;
create trigger audit_events_no_delete after delete on audit_events referencing old table as deleted
for each statement execute function audit_events_refuse();
