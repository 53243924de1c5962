//! Changes of an archived audit by a program that can write to the database or the files.

use anyhow::{Context, Result, ensure};
use rstest::rstest;
use serde_json::json;

use super::{Archived, FUTURE};
use crate::cli::told;
use crate::tamper::sqlite;

/// The statements that an intruder runs first.
const DISARM: [&str; 4] = [
    "drop trigger audit_rows_no_delete",
    "drop trigger audit_rows_no_update",
    "drop trigger audit_anchors_no_delete",
    "drop trigger audit_anchors_no_update",
];

/// Returns an audit with two archived segments and later rows in the database.
async fn twice_archived() -> Result<Archived> {
    let mut archived = Archived::make().await?;
    archived.archive().await?;
    archived.call_again().await?;
    archived.archive().await?;
    archived.call_again().await?;
    Ok(archived)
}

/// `is_of_anchor` says whether `doctor` also finds the problem. `doctor` reads only the first row of each chain.
#[rstest]
#[case::the_newest_anchor_removed(
    &["delete from audit_anchors where first_sequence > 1"], " are missing", true)]
#[case::an_older_anchor_removed(
    &["delete from audit_anchors where first_sequence = 1"], "the anchor of archived rows 1 to ", true)]
#[case::all_anchors_removed(&["delete from audit_anchors"], "rows 1 to ", true)]
#[case::an_anchor_moved(
    &["update audit_anchors set last_sequence = last_sequence + 1 where first_sequence > 1"], "is not signed by this host", true)]
#[case::the_hash_of_an_anchor(
    &["update audit_anchors set last_hash = previous_hash where first_sequence > 1"], "is not signed by this host", true)]
#[case::the_digest_of_a_manifest(
    &["update audit_anchors set manifest_digest = last_hash"], "is not signed by this host", true)]
#[case::an_anchor_that_cannot_be_read(
    &["update audit_anchors set last_hash = 'x' where first_sequence > 1"], "an anchor cannot be read", true)]
#[case::a_forged_anchor_and_its_rows(
    &[
        "insert into audit_anchors select writer, last_sequence + 1, last_hash, last_sequence + 2, (select lower(hex(hash)) from \
         audit_rows order by sequence limit 1 offset 1), last_at, 2, manifest_digest, archived_at, key_version, signature \
         from audit_anchors where first_sequence > 1",
        "delete from audit_rows where sequence <= (select max(last_sequence) from audit_anchors)",
    ], "is not signed by this host", true)]
#[case::the_anchor_of_another_chain(
    &["update audit_anchors set writer = '019a0000-0000-7000-8000-000000000000' where first_sequence > 1"], "is not signed by this host", true)]
#[case::rows_after_the_anchor(
    &["delete from audit_rows where sequence = (select min(sequence) from audit_rows)"], " is missing", true)]
#[case::rows_further_after_the_anchor(
    &["delete from audit_rows where sequence = (select min(sequence) + 1 from audit_rows)"], " is missing", false)]
#[case::an_archived_row_put_back(
    &[
        "create temp table kept as select * from audit_rows order by sequence limit 1",
        "update kept set sequence = 3",
        "insert into audit_rows select * from kept",
    ], "the row was archived, but it is in the database again", false)]
#[tokio::test]
async fn a_changed_database_is_found(
    #[case] statements: &[&str],
    #[case] what: &str,
    #[case] is_of_anchor: bool,
) -> Result<()> {
    let archived = twice_archived().await?;
    assert_eq!(archived.verify().await?["valid"], true);
    sqlite(&archived.server().data_dir(), &[&DISARM, statements].concat()).await?;
    let report = archived.verify().await?;
    ensure!(report["valid"] == false && report["problems"].to_string().contains(what), "{report}");
    let diagnosis = archived.diagnosis().await?.join("\n");
    assert_eq!(diagnosis.contains(what), is_of_anchor, "{diagnosis}");
    let refused = told(archived.server(), &["audit", "archive", "--before", FUTURE]).await?;
    ensure!(refused.contains("the audit failed verification at row") && refused.contains("[exit 1]"), "{refused}");
    Ok(())
}

/// SQL that inserts a forged anchor can delete rows although the triggers are in place. Verification and `doctor`
/// report the anchor and the missing rows.
#[tokio::test]
async fn a_forged_anchor_that_satisfies_the_triggers_is_found() -> Result<()> {
    let archived = Archived::make().await?;
    let data_dir = archived.server().data_dir();
    let forged = "insert into audit_anchors select writer, 1, lower(hex(zeroblob(32))), sequence, lower(hex(hash)), 0, sequence, \
                  lower(hex(zeroblob(32))), 0, 1, lower(hex(zeroblob(64))) from audit_rows where sequence = 4";
    sqlite(&data_dir, &[forged, "delete from audit_rows where sequence <= 4"]).await?;
    let report = archived.verify().await?;
    let found = report["problems"].to_string();
    ensure!(found.contains("is not signed by this host") && found.contains("rows 1 to 4 are missing"), "{report}");
    ensure!(archived.diagnosis().await?.len() == 2, "doctor does not name both");
    Ok(())
}

/// The anchors are replaced with the anchors of an older state, and the rows are not changed.
#[tokio::test]
async fn anchors_of_an_older_state_are_found() -> Result<()> {
    let mut archived = Archived::make().await?;
    archived.archive().await?;
    let data_dir = archived.server().data_dir();
    let older = tempfile::tempdir()?;
    std::fs::copy(data_dir.join("monstrum.db"), older.path().join("old.db"))?;
    archived.call_again().await?;
    archived.archive().await?;
    let attach = format!("attach '{}' as old", older.path().join("old.db").display());
    let put_back = ["delete from main.audit_anchors", "insert into main.audit_anchors select * from old.audit_anchors"];
    sqlite(&data_dir, &[&[attach.as_str()], &DISARM[..], &put_back].concat()).await?;
    let report = archived.verify().await?;
    ensure!(report["problems"].to_string().contains(" are missing"), "{report}");
    let report = archived.verify_archive().await?;
    ensure!(report["problems"].to_string().contains("neither an anchor for the segment nor its rows"), "{report}");
    Ok(())
}

#[tokio::test]
async fn a_changed_row_is_not_archived() -> Result<()> {
    let archived = Archived::make().await?;
    let data_dir = archived.server().data_dir();
    sqlite(&data_dir, &[DISARM[1], "update audit_rows set operation = 'x' where sequence = 5"]).await?;
    let refused = told(archived.server(), &["audit", "archive", "--before", FUTURE]).await?;
    ensure!(refused.contains("row 5 of ") && refused.contains("the row was changed after it was written"), "{refused}");
    assert_eq!(sqlite(&data_dir, &["select count(*) from audit_anchors"]).await?, json!([[0]]));
    Ok(())
}

/// Changes the files of segments at several positions, truncates them and removes them.
#[tokio::test]
async fn a_changed_archive_is_found() -> Result<()> {
    let archived = twice_archived().await?;
    assert_eq!(archived.verify_archive().await?["valid"], true);
    let mut names: Vec<_> =
        std::fs::read_dir(archived.folder())?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    names.sort();
    assert_eq!(names.len(), 4);
    let found = async |what: &str| {
        let report = archived.verify_archive().await?;
        ensure!(report["valid"] == false && report["problems"].to_string().contains(what), "{what}: {report}");
        anyhow::Ok(())
    };
    for (index, path) in names.iter().enumerate() {
        let is_manifest = index % 2 == 1;
        let whole = std::fs::read(path)?;
        for at in [0, whole.len() / 3, whole.len() / 2, whole.len() - 2] {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            std::fs::write(path, &changed)?;
            found(if is_manifest { "the file is not a manifest" } else { "the file was changed" }).await?;
        }
        std::fs::write(path, &whole[..whole.len() / 2])?;
        found(if is_manifest { "the file is not a manifest" } else { "the file was changed" }).await?;
        std::fs::remove_file(path)?;
        if !is_manifest {
            found("the file cannot be read").await?;
        } else if index == 1 {
            // Without the first segment, the second segment is compared with the anchor of the first segment.
            assert_eq!(archived.verify_archive().await?["segments"], 1);
        }
        std::fs::write(path, &whole)?;
    }
    let (first, second) = (std::fs::read(&names[1])?, std::fs::read(&names[3])?);
    std::fs::write(&names[1], &second)?;
    found("the file contains the manifest of another segment").await?;
    std::fs::write(&names[1], &first)?;
    assert_eq!(archived.verify_archive().await?["valid"], true);
    let missing = archived.folder().join("none.manifest.json");
    let report = super::verify_archive(archived.server(), &missing).await?;
    ensure!(report["problems"].to_string().contains("the file cannot be read"), "{report}");
    Ok(())
}

/// The second of three segments is removed.
#[tokio::test]
async fn a_missing_segment_is_found() -> Result<()> {
    let mut archived = twice_archived().await?;
    archived.archive().await?;
    archived.call_again().await?;
    let mut manifests: Vec<_> = std::fs::read_dir(archived.folder())?
        .map(|entry| Ok(entry?.path()))
        .filter(|path: &Result<_>| path.as_ref().is_ok_and(|path| path.extension().is_some_and(|end| end == "json")))
        .collect::<Result<_>>()?;
    manifests.sort();
    std::fs::remove_file(manifests.get(1).context("three segments")?)?;
    let report = archived.verify_archive().await?;
    ensure!(report["problems"].to_string().contains(" are missing between two segments of the archive"), "{report}");
    Ok(())
}
