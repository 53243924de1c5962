-- Where the chain of a writer begins after rows up to `last_sequence` were moved into the archive. Each row covers the
-- rows from `first_sequence` on, and is signed by the key of the audit's heads, because a program that can write the file
-- can insert a row here. Verification accepts a signed anchor only.
create table audit_anchors (
    writer text not null,
    first_sequence bigint not null,
    -- The hash of the row before the first archived row, and of the last archived row.
    previous_hash text not null,
    last_sequence bigint not null,
    last_hash text not null,
    -- The time of the last archived row.
    last_at bigint not null,
    rows bigint not null,
    -- The SHA-256 digest of the manifest of the archived segment.
    manifest_digest text not null,
    archived_at bigint not null,
    key_version bigint not null,
    signature text not null,
    primary key (writer, last_sequence)
);

-- These stop accidents, like those of audit_rows. The tables stay append-only, except that rows which an anchor covers can
-- be deleted.
create trigger audit_anchors_no_update before update on audit_anchors
begin
    select raise(abort, 'audit_anchors is append-only');
end;
create trigger audit_anchors_no_delete before delete on audit_anchors
begin
    select raise(abort, 'audit_anchors is append-only');
end;
drop trigger audit_rows_no_delete;
create trigger audit_rows_no_delete before delete on audit_rows
when not exists (select 1 from audit_anchors where writer = old.writer and last_sequence >= old.sequence)
begin
    select raise(abort, 'audit_rows is append-only');
end;
drop trigger audit_events_no_delete;
create trigger audit_events_no_delete before delete on audit_events
when not exists (select 1 from audit_anchors where writer = old.writer and last_sequence >= old.sequence)
begin
    select raise(abort, 'audit_events is append-only');
end;
