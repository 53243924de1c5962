//! What every kind of database must do alike, and what each does when it cannot.
//!
//! A case is a function over an open, empty store. `cases!` runs each of them on every backend; a further backend is a
//! further line at its end.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod audit;
mod authentic;
mod instance;
mod isolation;
mod oauth;
mod owners;
mod policy;
mod postgres;
mod rotated;
mod row_key;
mod rows;
mod sandboxes;
mod sealed;
mod sqlite;
mod support;
mod usage;

/// Cases that have an intruder, who writes what they want by SQL.
macro_rules! intrusions {
    ($($case:ident),+ $(,)?) => {
        macro_rules! intrude_on {
            ($backend:ident) => {
                mod $backend {
                    $(
                        #[tokio::test]
                        async fn $case() {
                            let database = crate::$backend::Database::create();
                            let store = database.open().await.unwrap();
                            crate::authentic::$case(&store, &mut database.intruder().await).await;
                        }
                    )+
                }
            };
        }
        mod intrusions_on {
            intrude_on!(sqlite);
            intrude_on!(postgres);
        }
    };
}

intrusions! {
    a_forged_row_does_not_exist,
    forged_rows_do_not_end_a_list,
    an_edited_row_is_refused_and_its_scope_unverified,
    a_row_that_was_put_back_is_found,
    an_older_version_of_a_row_is_found,
    an_old_seal_is_refused_with_all_its_rows,
    trust_that_was_put_back_is_not_read,
    sums_follow_every_change,
    every_column_is_under_the_mac_or_left_out,
    a_scope_is_sealed_anew_as_an_operator_accepts_it,
    a_deleted_workspace_does_not_come_back_with_its_keys,
    a_rotation_of_the_row_key_can_end_after_every_scope,
    what_a_retired_row_key_authenticates_is_refused,
    a_scope_that_is_not_verified_is_not_rotated,
    forged_rows_that_are_in_no_sum_can_be_deleted,
    a_row_of_any_form_keeps_no_other_from_being_read,
    an_unreadable_row_below_another_does_not_keep_it,
    a_single_row_is_read_as_it_was_sealed,
}

macro_rules! cases {
    ($($group:ident { $($case:ident),+ $(,)? })+) => {
        macro_rules! run_on {
            ($backend:ident) => {
                mod $backend {
                    $($(
                        #[tokio::test]
                        async fn $case() {
                            let database = crate::$backend::Database::create();
                            crate::$group::$case(&database.open().await.unwrap()).await;
                        }
                    )+)+
                }
            };
        }
        mod on {
            run_on!(sqlite);
            run_on!(postgres);
        }
    };
}

cases! {
    policy {
        a_new_store_has_its_default_workspace,
        workspaces_come_and_go,
        roles_come_and_go,
        bots_come_and_go,
        resources_come_and_go,
        credentials_come_and_go,
        bindings_come_and_go,
        keys_come_and_go,
        the_latest_use_of_a_key_is_kept,
        names_are_unique_in_a_workspace,
        what_is_bound_is_in_use,
        a_deleted_bot_takes_its_bindings_and_keys_along,
        lists_come_in_pages,
        every_change_bumps_the_generation,
        of_two_changes_of_what_was_read_once_one_is_told,
        a_snapshot_holds_all_rows,
        a_snapshot_is_of_one_moment,
        a_cancelled_change_is_whole_or_absent,
    }
    isolation {
        nothing_is_seen_across_workspaces,
        nothing_is_changed_across_workspaces,
        nothing_is_joined_across_workspaces,
        root_keys_belong_to_no_workspace,
    }
    instance {
        instance_keys_are_made_once,
        plugins_serve_stored_versions_only,
        trust_comes_and_goes,
        what_is_bound_is_named_by_its_type,
        a_request_is_claimed_once,
        of_two_claims_at_once_one_is_first,
        a_released_or_old_claim_is_free_again,
        awkward_texts_come_back_as_they_were,
        a_text_with_nul_is_refused,
    }
    owners {
        a_plugin_owns_the_names_of_the_version_that_serves,
        a_name_of_another_plugin_is_refused_and_nothing_is_written,
        an_approval_moves_exactly_what_it_was_asked_for,
        of_two_plugins_at_once_one_owns_a_name,
        a_new_database_has_no_owners_to_fill,
    }
    oauth {
        providers_come_and_go,
        each_step_of_an_authorization_is_taken_once,
        a_provider_is_asked_by_one_host_at_a_time,
        authorizations_end_with_what_they_are_for,
        one_host_refreshes_a_credential,
    }
    sandboxes {
        sandboxes_come_and_go,
        a_conversation_has_one_sandbox,
        sandboxes_stay_in_their_workspace,
        a_sandbox_is_claimed_by_one_at_a_time,
        an_operation_ends_only_what_it_has_begun,
        uses_are_noted_while_it_runs,
        a_deletion_is_a_job_until_it_is_done,
        a_deleted_bot_leaves_its_sandboxes_to_be_deleted,
        no_sandbox_is_left_without_its_bot,
        sandboxes_are_looked_through_by_their_host,
        lost_sandboxes_are_told_from_those_in_error,
    }
    sealed {
        sealed_records_are_walked_in_parts,
        a_sealed_record_is_replaced_only_while_it_is_the_one_that_was_read,
        a_group_of_sealed_records_is_replaced_whole_or_not_at_all,
    }
    usage {
        calls_are_charged_up_to_the_budget,
        months_and_tasks_have_accounts_of_their_own,
        of_many_charges_at_once_exactly_those_fit_that_fit,
        usage_stays_in_its_workspace_and_goes_with_its_bot,
        sums_stop_at_the_largest_number,
    }
    audit {
        events_come_back_as_they_were,
        a_group_is_appended_whole_or_not_at_all,
        a_place_in_the_chain_is_taken_once,
        every_size_of_group_is_stored,
        a_call_is_one_item,
        calls_are_filtered,
        calls_come_in_pages,
        calls_and_events_stay_in_their_workspace,
        starts_without_an_end_are_found,
        chains_are_scanned_in_parts,
        names_sort_by_their_bytes,
    }
}
