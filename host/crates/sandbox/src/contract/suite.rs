//! The macro that creates a test for each case.

/// Creates a test for each case of the contract, in one module per theme. The expression is a future that returns the
/// [`Subject`](crate::contract::Subject). Every test evaluates the expression again.
///
/// The calling crate needs `tokio` with `macros` and `rt-multi-thread`.
#[macro_export]
macro_rules! contract_suite {
    ($setup:expr) => {
        $crate::contract_suite!(@theme $setup, lifecycle,
            in_parallel: provider_is_ready_and_describes_itself, concurrent_starts_create_one_sandbox, stop_and_resume_twice_keep_files, stop_ends_everything, stop_of_a_running_exec_is_lost, delete_during_an_exec, second_delete_succeeds_and_a_new_sandbox_is_empty, missing_sandboxes_are_never_created, command_does_not_resume_a_stopped_sandbox, list_contains_all_sandboxes, invalid_limits_are_refused, unsupported_network_is_refused, concurrent_calls_leave_a_usable_sandbox, cancelled_calls_leave_a_usable_sandbox, resume_runs_no_program_of_the_sandbox;
            alone: );
        $crate::contract_suite!(@theme $setup, exec,
            in_parallel: exit_codes_match_the_shell, background_job_outlives_its_exec, output_before_a_timeout_is_returned, exec_works_after_a_timeout, commands_run_side_by_side, starts_in_the_workspace_or_the_given_folder, variables_are_passed_unchanged, invalid_requests_are_refused, stdin_is_empty_and_no_terminal, only_three_descriptors_are_open, environment_is_clean, limits_of_other_processes_cannot_be_set, sandbox_without_a_shell_still_has_files, signals_have_their_defaults, is_root_and_has_the_listed_programs, accounts_can_be_created_and_used;
            alone: returns_while_a_background_job_holds_its_pipes, timeout_kills_the_whole_process_tree, dropped_exec_leaves_no_process, process_whose_first_thread_has_ended_is_killed);
        $crate::contract_suite!(@theme $setup, programs,
            in_parallel: programs_see_the_size_of_the_sandbox, manuals_can_be_looked_up, package_managers_fail_at_once_without_a_network, package_managers_ask_once_without_a_network;
            alone: );
        $crate::contract_suite!(@theme $setup, output,
            in_parallel: streams_are_apart, newest_bytes_are_kept, cut_text_stays_text, invalid_utf8_is_replaced, feed_gets_every_piece_in_order, feed_is_live, closed_feed_is_ignored, background_output_is_drained_slowly, slow_reader_does_not_extend_the_timeout;
            alone: flood_is_capped_and_host_memory_stays_flat);
        $crate::contract_suite!(@theme $setup, limits,
            in_parallel: memory_limit_ends_the_command_only, unmapped_memory_ends_the_command_only, open_files_are_limited, killed_is_not_out_of_memory, tmp_size_is_limited, other_memory_file_systems_are_limited, processes_of_one_command_are_limited, processes_of_a_sandbox_are_limited, disk_is_limited_and_deleting_frees_space, inodes_are_limited, sandbox_without_free_inodes_is_resumed, resume_applies_new_limits, crash_leaves_no_dump, kernel_counters_are_per_sandbox;
            alone: buffers_of_sockets_are_limited, fork_bomb_is_contained, processor_quota_is_enforced);
        $crate::contract_suite!(@theme $setup, isolation,
            in_parallel: has_only_loopback, cannot_reach_the_host_nor_any_network, cannot_reach_sockets_without_files, uncommon_socket_families_are_refused, other_sandboxes_are_invisible, host_files_are_invisible, host_passwords_are_not_there, host_folders_are_not_there, host_processes_are_invisible, root_inside_is_unprivileged_outside, host_environment_is_invisible, only_harmless_devices_exist, devices_are_not_shared, state_of_the_host_is_invisible;
            alone: );
        $crate::contract_suite!(@theme $setup, attacks,
            in_parallel: kernel_knobs_cannot_be_turned, kernel_memory_and_state_cannot_be_read, nested_namespaces_are_denied, mounts_are_denied, namespaces_of_the_init_cannot_be_joined, chroot_does_not_escape, init_cannot_be_touched, killing_everything_kills_only_the_sandbox, dangerous_system_calls_are_denied, requests_that_load_code_are_denied, filters_cannot_be_attached, devices_cannot_be_made, privileges_are_bounded, setuid_programs_gain_nothing;
            alone: );
        $crate::contract_suite!(@theme $setup, files,
            in_parallel: written_files_can_be_read, new_files_belong_to_root_inside, paths_outside_are_refused, links_out_are_refused, links_within_are_followed, magic_links_are_refused, rename_race_does_not_lead_out, pipes_and_sockets_never_block, odd_names_work, writes_are_atomic, sizes_are_capped, large_files_are_streamed, listing_is_capped;
            alone: sparse_file_costs_nothing);
        $crate::contract_suite!(@theme $setup, archive,
            in_parallel: archive_contains_the_folder, archive_skips_special_files, archive_contains_links_within, archive_keeps_names_apart, archive_is_capped, archive_names_stay_beneath, unread_archive_ends;
            alone: archive_is_streamed);
    };
    (@theme $setup:expr, $theme:ident, $($manner:ident: $($case:ident),*);*) => {
        mod $theme {
            #[allow(unused_imports)]
            use super::*;
            $($(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    let _turn = $crate::contract::$manner().await;
                    let subject = $setup.await;
                    $crate::contract::$theme::$case(&subject).await;
                }
            )*)*
        }
    };
}
