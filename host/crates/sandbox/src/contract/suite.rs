//! A test of every case.

/// Makes a test of each case of the contract, in a module of its theme. The expression is a future that gives the
/// [`Subject`](crate::contract::Subject); it is made anew for each test.
///
/// What uses it needs `tokio` with `macros` and `rt-multi-thread`.
#[macro_export]
macro_rules! contract_suite {
    ($setup:expr) => {
        $crate::contract_suite!(@theme $setup, lifecycle,
            beside_others: provider_is_ready_and_says_what_it_has, twenty_first_calls_make_one, stop_and_resume_twice_keep_files, stop_ends_everything, stop_of_a_running_exec_is_lost, delete_during_an_exec, delete_twice_and_a_new_one_is_empty, missing_ones_are_never_made, stopped_one_is_not_woken_by_a_command, list_finds_ours, impossible_limits_are_refused_and_make_nothing, network_that_it_cannot_give_is_refused, storm_of_calls_ends_in_order, dropped_call_leaves_nothing_half_made, resumed_one_runs_nothing_that_nobody_asked_for;
            alone: );
        $crate::contract_suite!(@theme $setup, exec,
            beside_others: exit_codes_are_the_shells, background_job_outlives_its_exec, what_was_written_before_a_time_out_is_told, exec_works_after_a_time_out, commands_run_side_by_side, starts_in_the_workspace_or_where_asked, environment_is_added_as_it_is, impossible_requests_are_refused, stdin_is_empty_and_no_terminal, only_three_descriptors_are_open, environment_is_clean, limits_of_other_processes_cannot_be_set, sandbox_without_a_shell_still_has_files, signals_are_as_a_shell_expects_them, is_root_with_the_programs_that_it_names, accounts_are_made_and_used;
            alone: answers_although_a_job_holds_its_pipes, time_out_ends_the_whole_tree, dropped_exec_leaves_nothing, process_whose_first_thread_has_ended_is_ended);
        $crate::contract_suite!(@theme $setup, programs,
            beside_others: programs_see_the_size_of_the_sandbox, manuals_can_be_looked_up, package_managers_fail_at_once_without_a_network, package_managers_ask_once_without_a_network;
            alone: );
        $crate::contract_suite!(@theme $setup, output,
            beside_others: streams_are_apart, newest_bytes_are_kept, cut_text_stays_text, bytes_that_are_no_text_are_replaced, feed_gets_every_piece_in_order, feed_is_live, feed_that_nobody_reads_is_no_fault, output_in_the_background_is_read_slowly, time_runs_while_a_reader_is_slow;
            alone: flood_is_capped_and_host_memory_stays_flat);
        $crate::contract_suite!(@theme $setup, limits,
            beside_others: memory_limit_ends_the_command_only, memory_that_no_process_maps_ends_the_command_only, open_files_are_limited, killed_is_not_out_of_memory, temporary_folder_is_sized, no_other_place_in_memory_is_free, processes_of_one_command_are_limited, processes_of_a_sandbox_are_limited, disk_limit_is_felt_and_space_comes_back, inodes_are_limited, sandbox_without_free_inodes_is_resumed, limits_hold_anew_after_a_resume, crash_leaves_no_dump, counts_of_the_kernel_are_each_ones_own;
            alone: buffers_of_sockets_are_limited, fork_bomb_is_contained, share_of_the_processor_is_held);
        $crate::contract_suite!(@theme $setup, isolation,
            beside_others: has_only_loopback, cannot_reach_the_host_nor_any_network, cannot_reach_sockets_without_files, uncommon_socket_families_are_refused, other_sandboxes_are_invisible, host_files_are_invisible, host_passwords_are_not_there, host_folders_are_not_there, host_processes_are_invisible, root_inside_is_nobody_outside, host_environment_is_invisible, devices_are_the_harmless_ones, devices_are_shared_with_nobody, state_of_the_host_is_invisible;
            alone: );
        $crate::contract_suite!(@theme $setup, attacks,
            beside_others: kernel_knobs_cannot_be_turned, kernel_telltales_cannot_be_read, nested_namespaces_are_denied, mounts_are_denied, namespaces_of_the_first_process_are_no_way_out, change_of_root_leads_nowhere, first_process_cannot_be_touched, killing_everything_kills_only_the_sandbox, dangerous_system_calls_are_denied, requests_that_load_code_are_denied, filters_cannot_be_attached, devices_cannot_be_made, privileges_are_bounded, programs_that_change_the_user_gain_nothing;
            alone: );
        $crate::contract_suite!(@theme $setup, files,
            beside_others: what_is_written_is_read, belongs_to_the_sandboxs_user, paths_outside_are_refused, links_out_are_refused, links_within_are_followed, magic_links_are_refused, rename_race_does_not_lead_out, pipes_and_sockets_never_block, odd_names_are_names, is_written_whole_or_not_at_all, sizes_are_capped, large_files_are_streamed, listing_is_capped;
            alone: sparse_file_costs_nothing);
        $crate::contract_suite!(@theme $setup, archive,
            beside_others: archive_is_what_the_folder_holds, archive_leaves_out_what_is_no_file, archive_has_the_links_within, archive_keeps_names_apart, archive_is_capped, archive_names_stay_beneath, archive_that_nobody_reads_ends;
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
