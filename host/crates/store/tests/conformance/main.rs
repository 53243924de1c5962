//! Conformance tests: the behaviour that all databases share, and the failures of each database.
//!
//! Each test case is a function that receives an open, empty store. The `cases!` macro runs every case on every
//! backend. To add a backend, add a `run_on!` line at the end of the macro.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod agent_hosts;
mod approvals;
mod audit;
mod audit_reads;
mod authentic;
mod budgets;
mod console;
mod deliveries;
mod feed;
mod instance;
mod isolation;
mod oauth;
mod outputs;
mod owners;
mod policy;
mod postgres;
mod resource_tools;
mod rotated;
mod row_key;
mod rows;
mod runs;
mod sandboxes;
mod schedules;
mod sealed;
mod spans;
mod sqlite;
mod starts;
mod step_approvals;
mod subscriptions;
mod support;
mod tasks;
mod usage;
mod wakes;
mod webhooks;
mod workflows;

/// Defines test cases with an intruder, which can execute arbitrary SQL on the database.
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
    a_forged_row_is_ignored,
    forged_rows_do_not_end_a_list,
    an_edited_row_is_rejected_and_its_scope_unverified,
    edited_gates_and_labels_are_rejected,
    a_restored_row_is_detected,
    a_restored_older_version_of_a_row_is_detected,
    a_restored_seal_is_rejected_with_all_its_rows,
    restored_trust_is_not_read,
    every_change_updates_the_seals,
    every_column_is_listed_as_covered_or_left_out,
    an_operator_can_seal_a_scope_again,
    a_restored_workspace_does_not_restore_its_keys,
    a_rotation_of_the_row_key_can_stop_after_every_scope,
    rows_under_a_retired_row_key_are_rejected,
    an_unverified_scope_is_not_rotated,
    forged_rows_that_are_not_counted_can_be_deleted,
    a_malformed_row_does_not_hide_others,
    an_unreadable_child_row_does_not_block_a_deletion,
    a_single_row_is_compared_with_the_verified_one,
    changes_that_are_not_listed_are_noticed,
    an_older_row_is_not_read_as_a_change,
    a_restored_credential_is_not_read_with_its_resource,
    a_forged_row_is_not_read_as_a_change,
    an_older_generation_is_read_with_everything,
    a_restored_approval_permits_nothing,
    a_forged_grant_is_ignored,
    an_edited_question_is_rejected,
    an_edited_or_restored_tool_serves_nothing,
    an_edited_or_restored_budget_is_rejected,
    an_edited_or_restored_schedule_is_rejected,
    a_sandbox_without_its_labels_is_rejected,
    an_edited_or_restored_webhook_is_rejected,
    an_edited_or_restored_workflow_is_rejected,
    an_edited_or_restored_subscription_is_rejected,
    unreadable_reservations_do_not_hide_others,
    a_deleted_first_discovery_is_detected,
    forged_agents_are_ignored,
    forged_sessions_and_tickets_log_nobody_in,
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
        workspaces_are_inserted_updated_and_deleted,
        roles_are_inserted_updated_and_deleted,
        bots_are_inserted_updated_and_deleted,
        resources_are_inserted_updated_and_deleted,
        credentials_are_inserted_updated_and_deleted,
        credentials_of_users_are_apart,
        bindings_are_inserted_updated_and_deleted,
        keys_are_inserted_rotated_and_deleted,
        the_latest_use_of_a_key_is_kept,
        names_are_unique_in_a_workspace,
        a_bound_row_cannot_be_deleted,
        deleting_a_bot_deletes_its_bindings_and_keys,
        lists_have_pages,
        every_change_raises_the_generation,
        of_two_updates_of_the_same_version_one_fails,
        rows_are_written_together_or_not_at_all,
        a_snapshot_holds_all_rows,
        a_snapshot_is_consistent,
        a_cancelled_change_is_atomic,
    }
    feed {
        only_changed_rows_are_read,
        a_changed_resource_comes_with_its_credential,
        other_changes_are_read_with_everything,
    }
    budgets {
        budgets_are_written_read_as_changes_and_deleted,
        the_budget_of_a_bot_is_written_with_its_row_and_deleted_with_it,
        budgets_belong_to_their_workspace,
    }
    webhooks {
        webhooks_are_written_read_as_changes_and_deleted,
        webhooks_belong_to_their_workspace_and_are_deleted_with_their_bot,
        a_repeated_request_makes_one_event,
        of_requests_at_once_one_makes_an_event,
        secrets_of_webhooks_are_sealed_records,
    }
    resource_tools {
        tools_are_written_read_as_changes_and_deleted_with_their_resource,
        of_two_changes_of_the_same_tools_one_succeeds,
        one_host_at_a_time_discovers,
    }
    wakes {
        of_eight_claimers_of_a_wake_one_wins,
        only_wakes_that_are_due_and_unclaimed_are_claimed,
        a_request_brings_a_wake_forward,
        a_request_during_a_turn_is_kept,
        a_lost_claim_writes_nothing,
        failed_turns_are_counted_until_one_succeeds,
        claims_are_renewed_released_and_dropped,
        a_wake_is_inserted_claimed_only_if_its_key_is_new,
        wakes_are_deleted_with_their_workspace,
        wakes_and_events_are_written_with_charges,
        events_are_sealed_records_and_are_forgotten,
        one_host_holds_a_chore,
    }
    agent_hosts {
        agents_are_known_to_other_hosts_while_the_lease_of_their_host_lasts,
        a_deleted_resource_has_no_agents,
        hosts_without_a_lease_are_forgotten,
    }
    console {
        sessions_are_inserted_updated_and_deleted,
        a_key_keeps_its_newest_sessions,
        a_rotated_or_deleted_key_gets_no_session,
        messages_and_uses_of_concurrent_requests_are_kept,
        a_ticket_is_taken_once,
        ended_sessions_and_tickets_are_purged,
    }
    isolation {
        rows_of_other_workspaces_are_not_found,
        rows_of_other_workspaces_are_not_changed,
        rows_of_different_workspaces_cannot_be_linked,
        root_keys_belong_to_no_workspace,
        keys_of_agents_belong_to_a_resource,
    }
    instance {
        instance_keys_are_inserted_once,
        only_stored_versions_can_be_active,
        plugin_records_have_the_generation_of_the_instance,
        trust_is_inserted_and_deleted,
        bindings_are_found_by_resource_type,
        a_request_is_claimed_once,
        of_two_concurrent_claims_one_is_first,
        a_released_or_purged_key_can_be_claimed_again,
        unusual_texts_round_trip,
        a_text_with_nul_is_rejected,
    }
    owners {
        a_plugin_owns_the_names_of_its_active_version,
        a_name_of_another_plugin_is_rejected_and_nothing_is_written,
        an_approval_transfers_exactly_the_names_it_lists,
        of_concurrent_plugins_one_owns_a_name,
        a_new_database_has_no_owners_to_fill,
    }
    oauth {
        providers_are_inserted_updated_and_deleted,
        each_step_of_an_authorization_is_taken_once,
        a_user_signs_in_once_and_in_one_browser,
        one_host_polls_a_provider_at_a_time,
        authorizations_are_deleted_with_their_resource_or_provider,
        a_resource_has_its_own_provider,
        a_proposal_is_replaced_and_expires,
        missing_scopes_belong_to_their_credential,
        one_host_refreshes_a_credential,
    }
    sandboxes {
        sandboxes_are_inserted_listed_and_deleted,
        a_conversation_has_one_sandbox,
        sandboxes_of_other_workspaces_are_not_found,
        a_sandbox_has_one_lease_at_a_time,
        an_operation_settles_only_its_own_lease,
        uses_are_recorded_while_a_sandbox_is_running,
        a_deletion_is_retried_until_it_succeeds,
        deleting_a_bot_marks_its_sandboxes_for_deletion,
        a_sandbox_never_outlives_its_bot_unmarked,
        a_host_finds_its_sandboxes,
        lost_sandboxes_differ_from_those_in_error,
        labels_of_a_sandbox_only_grow,
    }
    tasks {
        a_session_runs_one_task_at_a_time,
        a_tree_of_tasks_has_a_maximum,
        steps_are_written_by_the_turn_that_has_the_claim,
        labels_of_a_session_only_grow,
        a_session_with_labels_is_kept_as_long_as_the_sandbox,
        the_time_for_which_a_task_waits_is_kept,
        a_call_whose_start_may_be_in_an_archive_counts_as_started,
        the_claim_of_a_new_task_follows_the_clock_for_wakes,
        a_session_is_deleted_with_the_sandbox_that_no_open_session_uses,
        conversations_are_deleted_unless_a_task_of_them_runs,
        tasks_without_a_session_are_deleted_with_their_conversation,
        each_write_of_a_turn_changes_the_state_of_its_task,
        a_decision_wakes_the_tasks_that_wait_for_it,
    }
    schedules {
        schedules_are_inserted_changed_listed_and_deleted,
        a_planned_time_fires_once,
        of_two_hosts_one_fires,
        the_end_of_a_task_counts_for_its_schedule,
        a_firing_waits_starts_or_fails,
        a_person_fires_beside_the_planned_times,
        a_change_keeps_what_firings_have_written,
    }
    workflows {
        workflows_are_inserted_changed_listed_and_deleted,
        versions_of_a_workflow_are_kept,
        triggers_are_inserted_changed_listed_and_deleted,
        workflows_belong_to_their_workspace,
    }
    subscriptions {
        subscriptions_are_written_read_as_changes_and_deleted,
        subscriptions_belong_to_their_bot_and_workspace,
    }
    deliveries {
        events_are_numbered_without_gaps_and_delivered_once,
        a_dispatch_by_an_older_policy_writes_nothing,
        too_many_deliveries_are_dead,
        of_two_turns_of_a_delivery_one_starts_a_task,
        the_end_of_a_task_wakes_the_oldest_delivery,
        dead_deliveries_are_retried,
        deliveries_end_with_their_subscription,
        events_have_pages_and_positions,
    }
    runs {
        runs_are_inserted_listed_and_deleted_with_their_workflow,
        a_run_starts_once_and_only_of_an_enabled_workflow,
        a_workflow_that_skips_starts_no_run_beyond_its_limit,
        a_turn_of_a_run_writes_all_or_nothing,
        the_end_of_a_step_is_written_by_the_turn_that_has_the_claim,
        the_steps_of_a_run_are_read_in_pages,
        a_turn_finds_the_open_attempt_of_its_step,
        a_step_waits_for_an_approval_without_a_turn,
        people_pause_cancel_resolve_and_retry_runs,
        a_run_starts_when_there_is_room,
        a_run_starts_its_child_in_the_same_transaction,
        a_key_that_is_gone_wakes_its_runs,
    }
    starts {
        a_delivery_starts_one_run,
        a_delivery_without_room_waits_for_the_end_of_a_run,
        a_delivery_that_cannot_start_a_run_is_dead,
        deliveries_have_a_turn_when_their_trigger_is_disabled_or_deleted,
        an_event_wakes_the_runs_that_wait_for_it,
        events_are_searched_by_type_position_and_time,
        the_end_of_a_task_wakes_the_run_of_its_step,
    }
    outputs {
        outputs_are_listed_from_the_newest,
        the_oldest_outputs_make_room,
        outputs_of_other_workspaces_are_not_found,
        outputs_are_deleted_with_their_sandbox,
    }
    approvals {
        an_approval_is_asked_for_decided_and_used_once,
        a_new_approval_is_reported,
        large_parameters_are_not_read_for_a_list,
        of_concurrent_uses_of_an_approval_one_succeeds,
        denied_void_and_expired_approvals_permit_nothing,
        pending_approvals_are_limited,
        approvals_are_listed_by_id_and_by_change,
        grants_are_read_as_changes_and_deleted_with_their_bot,
    }
    step_approvals {
        a_step_asks_in_the_turn_of_its_run_and_the_decision_wakes_the_run,
        the_end_of_an_approval_wakes_the_steps_that_wait_for_it,
        a_turn_that_asks_for_too_much_writes_nothing,
        approvals_for_which_no_step_waits_become_void,
        a_changed_call_makes_its_approval_void_once,
    }
    sealed {
        sealed_records_have_pages,
        a_sealed_record_is_replaced_only_if_it_is_unchanged,
        a_batch_of_sealed_records_is_replaced_atomically,
    }
    usage {
        calls_are_charged_up_to_the_budget,
        usage_is_counted_per_month_and_task,
        concurrent_charges_never_exceed_the_budget,
        usage_belongs_to_its_workspace_and_outlives_its_bot,
        sums_saturate,
        usage_that_has_happened_is_added_beyond_the_budget,
        a_call_is_charged_to_all_subjects_or_to_none,
        a_reservation_takes_room_until_it_is_settled,
        a_round_that_used_nothing_is_not_counted,
        a_round_of_several_tries_is_counted_once,
        a_reservation_is_released_if_it_exists,
        reservations_at_once_never_exceed_the_budget,
        reservations_of_dead_hosts_are_found,
        usage_is_reported_by_bot_user_task_and_model,
    }
    audit {
        events_round_trip,
        a_batch_is_appended_atomically,
        a_sequence_is_used_once,
        batches_of_every_size_are_stored,
        a_call_is_one_item_of_the_list,
        calls_are_filtered,
        calls_have_pages,
        calls_and_events_of_other_workspaces_are_not_found,
        starts_without_an_end_are_found,
        chains_are_scanned_in_pages,
        names_sort_by_their_bytes,
        several_starts_of_a_call_are_one_item,
        archived_rows_are_replaced_with_an_anchor,
        an_anchor_of_another_number_of_rows_deletes_nothing,
        rows_of_others_are_written_in_the_same_transaction,
    }
    audit_reads {
        calls_are_filtered_by_resource_and_rule,
        a_tree_has_a_call_and_the_calls_below_it,
        changes_and_calls_of_others_are_in_no_tree,
        calls_are_counted,
        ends_of_calls_are_followed,
    }
}
