"""The tests of each threat in docs/threat-model.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

# The number of the threat -> the tests that show its control.
TESTS: Final[Mapping[str, tuple[str, ...]]] = {
    "S1": (
        "tests/slack/test_hooks.py::test_a_forged_request_leaves_nothing",
        "tests/slack/test_hooks.py::test_a_changed_body_leaves_nothing",
        "tests/slack/test_hooks.py::test_what_is_not_signed_as_slack_signs_leaves_nothing",
    ),
    "S2": ("tests/slack/test_hooks.py::test_a_replayed_request_is_taken_once",),
    "S3": ("tests/slack/test_hooks.py::test_a_late_request_leaves_nothing",),
    "S4": (
        "tests/slack/test_hooks.py::test_who_is_not_named_is_refused_in_private_and_nothing_happens",
        "tests/slack/test_hooks.py::test_nobody_gets_in_because_slack_cannot_be_asked",
        "tests/slack/test_hooks.py::test_a_name_is_no_credential",
        "tests/slack/test_hooks.py::test_a_channel_without_a_signing_secret_opens_no_door",
    ),
    "S5": ("tests/slack/test_hooks.py::test_answers_go_to_slack_and_nowhere_else",),
    "S6": (
        "tests/slack/test_hooks.py::test_a_body_that_is_too_large_leaves_nothing",
        "tests/slack/test_hooks.py::test_no_body_breaks_the_readers",
        "tests/slack/test_hooks.py::test_no_header_breaks_the_check",
    ),
    "S7": (
        "tests/guardrails/test_approvals.py::test_the_first_answer_counts",
        "tests/guardrails/test_world.py::test_an_answer_after_the_deadline_is_refused_where_it_is_given",
        "tests/guardrails/test_approvals.py::test_an_approval_to_stop_for_one_fault_does_not_cover_a_stop_for_another",
        "tests/guardrails/test_approvals.py::test_an_approved_reboot_approves_no_replacement",
    ),
    "W1": ("tests/notify/test_inbound.py::test_forged_late_and_early_requests_are_refused_by_the_header_at_fault",),
    "W2": (
        "tests/notify/test_inbound.py::test_a_request_s_copy_is_refused_and_a_secret_may_be_changed_without_a_gap",
        "tests/services/test_services.py::test_the_same_fact_twice_is_one",
    ),
    "W3": (
        "tests/notify/test_inbound.py::test_what_is_too_large_or_no_json_by_its_own_word_is_refused_before_it_is_read",
        "tests/notify/test_inbound.py::test_bodies_that_cannot_be_read_are_refused_by_the_field",
    ),
    "W4": (
        "tests/security/test_authority.py::test_no_alert_claims_an_order_or_a_conclusion_of_ours",
        "tests/security/test_authority.py::test_no_alert_names_what_is_no_name",
    ),
    "W5": (
        "tests/infra/test_template.py::test_every_request_to_the_api_must_be_signed_but_those_that_carry_a_proof_of_their_own",
    ),
    "O1": (
        "tests/notify/test_outbound.py::test_private_addresses_need_leave_and_metadata_is_never_reached",
        "tests/notify/test_outbound.py::test_this_machine_needs_leave",
        "tests/notify/test_outbound.py::test_plain_http_goes_nowhere_else",
    ),
    "O2": (
        "tests/notify/test_delivery.py::test_a_redirect_is_not_followed",
        "tests/security/test_out.py::test_a_name_is_asked_for_once_and_the_address_that_was_judged_is_the_one_that_is_called",
    ),
    "O3": ("tests/notify/test_outbound.py::test_what_is_no_plain_address_is_refused",),
    "O4": (
        "tests/notify/test_outbound.py::test_no_receiver_holds_us_longer_than_agreed",
        "tests/notify/test_delivery.py::test_one_receiver_s_outage_delays_no_other_channel",
    ),
    "O5": (
        "tests/notify/test_delivery.py::test_a_notice_arrives_once_as_a_signed_cloud_event",
        "tests/notify/test_outbound.py::test_signatures_fit_the_specification_s_own_example",
    ),
    "O6": (
        "tests/notify/test_pages.py::test_a_page_asks_for_nothing_from_anywhere_and_its_style_is_the_one_that_its_policy_allows",
        "tests/notify/test_pages.py::test_a_fresh_link_opens_the_page_over_http_and_nothing_opens_it_without_one",
    ),
    "O7": ("tests/notify/test_pages.py::test_no_text_changes_what_a_page_is_made_of",),
    "O9": (
        "tests/infra/test_hub.py::test_neither_template_gives_the_hub_an_action_in_a_member_or_starts_anything_in_the_hub",
        "tests/infra/test_hub.py::test_the_hub_takes_notices_and_no_other_event_even_from_a_member_that_sends_past_its_rule",
        "tests/infra/test_hub.py::test_each_account_and_region_sends_for_itself_alone",
    ),
    "A1": (
        "tests/infra/test_template.py::test_every_request_to_the_api_must_be_signed_but_those_that_carry_a_proof_of_their_own",
        "tests/api/test_description.py::test_no_route_is_public",
    ),
    "A2": (
        "tests/security/test_read_only.py::test_what_changes_something_is_no_get_and_what_is_no_get_is_an_order",
        "tests/security/test_read_only.py::test_a_reading_call_leaves_everything_as_it_was",
    ),
    "A3": (
        "tests/security/test_read_only.py::test_a_reader_reads_with_the_command_line_and_orders_nothing",
        "tests/security/test_read_only.py::test_a_reader_reads_in_the_console_and_orders_nothing",
    ),
    "A4": ("tests/security/test_authority.py::test_an_order_is_its_signer_s_whatever_the_request_says",),
    "A5": (
        "tests/api/test_requests.py::test_a_key_is_its_signer_s_own_and_a_session_of_the_same_role_has_the_same",
        "tests/security/test_authority.py::test_a_key_that_two_signers_share_is_two_orders",
        "tests/api/test_memory.py::test_an_order_is_new_once_and_its_answer_is_kept",
        "tests/api/test_memory.py::test_after_two_weeks_a_key_is_free_again_though_its_item_is_still_there",
    ),
    "A6": (
        "tests/api/test_pages.py::test_a_cursor_cannot_be_bent_to_another_place",
        "tests/api/test_requests.py::test_a_body_that_is_too_large_or_something_else_is_refused_unread",
        "tests/api/test_requests.py::test_what_is_no_json_document_is_refused_as_the_body",
        "tests/api_fuzz/test_fuzz.py::test_nothing_undocumented_is_answered",
        "tests/api_fuzz/test_fuzz.py::test_an_odd_name_is_not_found",
    ),
    "A7": (
        "tests/api/test_memory.py::test_a_document_that_the_service_could_not_read_is_not_stored",
        "tests/api/test_memory.py::test_a_document_is_written_only_in_place_of_the_version_that_was_read",
        "tests/services/test_services.py::test_a_policy_that_is_missing_protects_in_shadow_mode",
    ),
    "A8": (
        "tests/infra/test_policies.py::test_what_few_functions_need_the_others_may_not_do",
        "tests/security/test_permissions.py::test_every_action_that_a_policy_lists_is_used",
    ),
    "A9": (
        "tests/localcloud/test_roles.py::test_what_speaks_to_foreign_servers_writes_only_what_it_has_delivered",
        "tests/localcloud/test_roles.py::test_no_function_reaches_what_is_none_of_its_business",
    ),
    "A10": (
        "tests/infra/test_policies.py::test_no_role_is_handed_over_that_nobody_has_named",
        "tests/localcloud/test_roles.py::test_without_named_roles_no_job_is_submitted_and_a_person_is_told_why",
    ),
    "A11": ("tests/infra/test_deploy.py::test_no_stage_has_a_name_that_another_stage_gives_its_own_resources",),
    "M1": (
        "tests/security/test_mailboxes.py::test_another_job_s_words_are_not_taken_for_ours",
        "tests/security/test_mailboxes.py::test_another_job_s_fence_and_requests_move_nobody",
        "tests/services/test_slurm_service.py::test_nobody_gets_the_mailbox_of_another_users_run",
        "tests/adapters/test_mailbox_s3.py::test_a_heartbeat_that_speaks_for_another_attempt_is_not_believed",
    ),
    "M2": (
        "tests/security/test_mailboxes.py::test_no_name_leads_out_of_a_mailbox",
        "tests/security/test_mailboxes.py::test_no_place_leads_elsewhere",
        "tests/security/test_mailboxes.py::test_a_manifest_that_leads_out_or_is_too_much_is_refused",
        "tests/monitor/test_mailbox.py::test_empty_files_no_files_and_ways_out_are_never_verified",
        "tests/agent_slurm/test_relay.py::test_no_link_is_followed_in_a_mailbox",
    ),
    "M3": (
        "tests/security/test_mailboxes.py::test_of_an_oversized_manifest_no_more_is_read_than_one_may_hold",
        "tests/adapters/test_mailbox_s3.py::test_garbage_makes_nothing_fail_and_nothing_healthy",
        "tests/adapters/test_mailbox_s3.py::test_a_crowd_of_manifests_costs_a_bounded_number_of_reads_and_reaches_far_back",
        "tests/agent_slurm/test_relay.py::test_a_mailbox_brings_no_more_than_fits",
    ),
    "M4": ("tests/adapters/test_mailbox_s3.py::test_a_manifest_that_does_not_tell_the_truth_is_not_verified",),
    "M5": ("tests/infra/test_policies.py::test_the_training_role_cannot_forge_what_the_service_writes",),
    "N1": (
        "tests/security/test_training_role.py::test_a_role_neither_writes_nor_reads_in_anybody_elses_mailbox",
        "tests/security/test_training_role.py::test_a_role_without_the_tag_reaches_no_mailbox",
        "tests/security/test_training_role.py::test_no_sign_in_the_tag_is_a_wildcard",
        "tests/security/test_training_role.py::test_a_role_lists_its_own_prefix",
    ),
    "N2": (
        "tests/adapters/test_mailbox_s3.py::test_a_manifest_that_does_not_tell_the_truth_is_not_verified",
        "tests/security/test_agent_budgets.py::test_a_manifest_that_points_at_somebody_elses_files_is_no_checkpoint",
    ),
    "N3": (
        "tests/security/test_neighbours.py::test_a_run_tagged_as_another_roles_job_is_protected_as_its_own_and_takes_nothing",
        "tests/security/test_neighbours.py::test_a_run_that_names_another_roles_mailbox_gets_none",
        "tests/security/test_neighbours.py::test_a_run_of_another_role_is_not_taken_for_the_one_that_a_person_resubmitted",
        "tests/adapters/test_training_job.py::test_a_run_under_another_role_is_no_sibling_whatever_it_says_of_itself",
    ),
    "E1": (
        "tests/ingest/test_golden_events.py::test_a_foreign_account_or_owner_is_refused_by_name",
        "tests/ingest/test_golden_events.py::test_an_oversized_event_is_refused_as_object_text_and_bytes",
        "tests/ingest/test_logs.py::test_a_bomb_is_refused_before_it_fills_the_memory",
    ),
    "E2": (
        "tests/ingest/test_agent.py::test_news_is_never_of_another_clusters_job",
        "tests/ingest/test_training_job.py::test_a_reply_in_anothers_name_is_refused",
    ),
    "E3": (
        "tests/guardrails/test_completeness.py::test_nothing_that_may_do_harm_to_a_run_passes_a_guard_that_holds",
        "tests/guardrails/test_completeness.py::test_nothing_that_may_do_harm_to_a_node_passes_a_guard_that_holds",
        "tests/guardrails/test_world.py::test_a_pause_set_between_a_decision_and_its_act_stops_the_act_and_loses_nothing",
        "tests/guardrails/test_world.py::test_a_storm_trips_the_breaker_before_more_than_so_many_have_acted",
    ),
    "E4": (
        "tests/security/test_patterns.py::test_no_pattern_backtracks_without_end",
        "tests/ingest/test_reasons_and_xids.py::test_a_long_hostile_text_is_read_in_bounded_time",
    ),
    "E5": (
        "tests/security/test_forged_events.py::test_a_claim_that_the_heartbeat_denies_is_waited_with_and_then_noted",
        "tests/security/test_forged_events.py::test_a_claim_about_the_new_attempt_is_not_acted_on_either",
    ),
    "E8": (
        "tests/security/test_forged_events.py::test_a_claim_about_a_run_without_heartbeats_stops_it_only_after_a_person_has_agreed",
        "tests/security/test_forged_events.py::test_a_metric_that_counts_bad_values_of_a_run_without_heartbeats_is_asked_about",
    ),
    "E6": ("tests/guardrails/test_alerts.py::test_a_line_in_the_health_agents_log_alone_is_asked_about",),
    "E7": (
        "tests/services/test_nodes.py::test_a_head_node_that_names_another_cluster_has_none_of_its_nodes_repaired",
        "tests/services/test_nodes.py::test_an_agent_that_changes_its_word_between_a_look_and_an_act_repairs_nothing",
    ),
    "E9": (
        "tests/security/test_attackers.py::test_a_head_node_that_speaks_for_another_cluster_harms_none_of_its_runs_and_nodes",
        "tests/services/test_slurm_service.py::test_an_end_that_the_clusters_own_document_does_not_show_changes_nothing",
        "tests/services/test_slurm_service.py::test_a_node_that_the_clusters_own_document_shows_in_service_is_left_alone",
        "tests/services/test_slurm_service.py::test_an_event_of_a_cluster_that_has_no_agent_is_not_ours_and_does_not_come_again",
    ),
    "E10": ("tests/security/test_ingress.py::test_nothing_has_happened_in_the_future",),
    "E11": ("tests/security/test_attackers.py::test_a_training_role_that_speaks_for_another_job_harms_it_in_nothing",),
    "E12": (
        "tests/ingest/test_properties.py::test_what_is_nested_deep_is_malformed_wherever_it_stands",
        "tests/security/test_ingress.py::test_a_deeply_nested_event_is_kept_apart_to_the_depth_that_can_be_written_and_fed_in_again",
        "tests/security/test_ingress.py::test_one_text_that_cannot_be_read_keeps_no_other_from_being_fed_in_again",
    ),
    "E13": (
        "tests/infra/lifecycle/test_lifecycle.py::"
        "test_no_two_clusters_of_a_stack_share_a_queue_however_long_their_names_are",
    ),
    "F2": (
        "tests/security/test_flood.py::test_a_head_node_that_speaks_for_other_clusters_makes_no_queues",
        "tests/infra/test_policies.py::test_what_few_functions_need_the_others_may_not_do",
    ),
    "B1": (
        "tests/security/test_bad_documents.py::test_a_reader_gives_a_value_or_its_own_error_and_soon",
        "tests/security/test_bad_documents.py::test_a_message_is_read_whole_or_refused_by_its_field",
        "tests/security/test_agent_budgets.py::test_no_mailbox_that_a_comment_names_keeps_the_relay_from_the_others",
        "tests/security/test_agent_budgets.py::test_no_document_in_a_mailbox_keeps_the_relay_from_the_others",
        "tests/security/test_agent_budgets.py::test_a_folder_with_a_strange_name_hides_no_other_checkpoint",
        "tests/security/test_agent_budgets.py::test_a_problem_with_a_strange_name_in_it_does_not_break_the_heartbeat",
    ),
    "B2": (
        "tests/security/test_agent_budgets.py::test_work_on_a_users_files_ends_with_its_time",
        "tests/security/test_agent_budgets.py::test_the_end_of_a_log_is_judged_in_bounded_time",
        "tests/security/test_agent_budgets.py::test_one_users_work_is_put_off_when_it_has_taken_its_share",
        "tests/security/test_agent_budgets.py::test_folders_that_take_long_are_asked_for_less_often",
        "tests/agent_slurm/test_hangs.py::test_the_relay_carries_every_other_mailbox_and_names_the_path",
        "tests/agent_slurm/test_hangs.py::test_no_module_but_the_workers_own_touches_a_users_path",
        "tests/slurm/test_slurm_attacker.py::test_a_user_harms_his_own_jobs_alone",
    ),
    "F1": (
        "tests/services/test_services.py::test_a_signal_that_a_full_inbox_cannot_keep_is_said_and_wakes_nobody",
        "tests/services/test_services.py::test_hearsay_about_an_unknown_name_costs_one_question_an_hour_and_the_platforms_word_ends_that",
        "tests/infra/test_template.py::test_functions_that_can_be_flooded_can_be_bounded_and_no_other",
        "tests/security/test_flood.py::test_a_million_different_names_ask_the_platform_so_often_a_minute_and_no_more",
        "tests/security/test_flood.py::test_in_the_middle_of_a_flood_a_run_that_asks_for_protection_gets_it",
        "tests/security/test_flood.py::test_one_strangers_name_again_and_again_costs_reads_of_the_table",
        "tests/security/test_flood.py::test_forged_claims_about_a_protected_run_cost_what_the_table_says",
    ),
    "H1": (
        "tests/agent_slurm/test_relay.py::test_root_reads_and_writes_as_the_jobs_user",
        "tests/agent_slurm/test_relay.py::test_roots_groups_open_nothing_for_a_user",
        "tests/agent_slurm/test_submit.py::test_root_is_not_taken_from_the_whiteboard",
        "tests/agent_slurm/test_submit.py::test_a_spec_of_another_user_is_not_submitted",
        "tests/agent_slurm/test_watch.py::test_nobody_joins_another_users_job",
    ),
    "H3": (
        "tests/agent_slurm/test_injected_orders.py::test_nothing_that_the_file_forbids_is_run",
        "tests/agent_slurm/test_allowed.py::test_only_a_file_of_roots_that_no_one_else_can_write_counts",
        "tests/agent_slurm/test_allowed.py::test_what_cannot_be_counted_is_not_done",
    ),
    "H4": (
        "tests/agent_slurm/test_helper.py::test_whatever_is_sent_it_answers_and_changes_nothing",
        "tests/agent_slurm/test_helper.py::test_nothing_is_changed_before_the_lock_without_the_lease_or_against_the_file",
        "tests/agent_slurm/test_helper.py::test_only_what_was_captured_here_is_submitted",
        "tests/agent_slurm/test_helper.py::test_files_are_touched_only_as_users_who_have_jobs",
    ),
    "H2": (
        "tests/agent/test_orders.py::test_an_order_that_is_late_is_refused_and_never_run",
        "tests/agent/test_orders.py::test_an_order_for_another_cluster_is_refused_under_our_own_name",
        "tests/agent/test_orders.py::test_another_order_under_a_used_token_is_refused_and_the_first_ones_answer_stands",
    ),
    "I1": (
        "tests/security/test_words.py::test_no_text_from_outside_is_markup_in_the_console",
        "tests/console/test_injection.py::test_no_text_becomes_an_element_an_attribute_or_a_link",
        "tests/console/test_injection.py::test_a_script_that_slipped_in_would_not_run",
    ),
    "I2": (
        "tests/ledger/test_postmortem.py::test_nothing_from_outside_is_markup_a_link_or_a_line_of_its_own",
        "tests/ledger/test_postmortem.py::test_no_text_changes_the_shape_of_the_document",
    ),
    "I3": (
        "tests/slack/test_blocks.py::test_other_peoples_words_stay_words_and_inside_the_limits",
        "tests/slack/test_blocks.py::test_words_cannot_leave_their_backticks",
        "tests/notify/test_apprise.py::test_other_people_s_words_ping_nobody_and_disguise_no_link",
    ),
    "I4": ("tests/notify/test_paste.py::test_other_people_s_words_stay_one_word_of_a_command",),
    "I5": (
        "tests/cli/test_people.py::test_no_text_from_outside_reaches_a_terminal_as_anything_but_text",
        "tests/cli/test_ends.py::test_an_error_from_outside_cannot_forge_the_terminal",
    ),
    "I6": (
        "tests/security/test_secrets.py::test_a_log_line_is_one_line_whatever_stands_in_it",
        "tests/ledger/test_prometheus.py::test_no_word_from_outside_breaks_a_line",
    ),
    "C1": (
        "tests/console/test_gate.py::test_another_name_for_this_machine_is_answered_by_nothing",
        "tests/console/test_gate.py::test_an_order_from_elsewhere_changes_nothing",
        "tests/console/test_gate.py::test_an_order_is_no_link",
    ),
    "C2": (
        "tests/console/test_gate.py::test_without_the_key_there_is_nothing_to_see",
        "tests/console/test_gate.py::test_it_listens_on_this_machine_only",
        "tests/console/test_gate.py::test_a_link_for_once_opens_once",
    ),
    "C5": (
        "tests/console/test_gate.py::test_the_key_goes_to_no_other_server_of_this_machine",
        "tests/cli/test_console.py::test_the_cookie_is_for_the_consoles_own_pages_and_for_no_other_server_of_the_machine",
    ),
    "C3": (
        "tests/console/test_gate.py::test_no_path_leads_out_of_the_static_files",
        "tests/console/test_gate.py::test_every_answer_forbids_scripts_frames_and_keeping",
    ),
    "C4": (
        "tests/cli/test_ends.py::test_a_url_that_cannot_be_trusted_is_wrong_usage",
        "tests/cli/test_ends.py::test_a_redirection_is_not_followed",
        "tests/cli/test_ends.py::test_a_name_cannot_leave_its_place_in_the_path",
    ),
    "K1": (
        "tests/security/test_secrets.py::test_a_secret_is_read_without_a_trace",
        "tests/security/test_secrets.py::test_without_that_the_library_would_tell_it",
        "tests/security/test_secrets.py::test_a_webhook_and_apprise_tell_no_secret_whatever_is_answered",
        "tests/security/test_secrets.py::test_slack_s_token_is_told_nowhere",
        "tests/slack/test_hooks.py::test_secrets_and_bodies_are_in_no_log",
        "tests/test_canary.py::test_a_secret_that_a_test_prints_fails_it",
    ),
    "K2": (
        "tests/notify/test_routing.py::test_a_secret_in_place_of_a_secret_s_name_is_refused_and_not_repeated",
        "tests/doctor/test_setup.py::test_channels_are_counted_and_the_secrets_that_they_name_looked_for_by_name_alone",
    ),
    "K3": (
        "tests/agent_slurm/test_submit.py::test_nobody_elses_secrets_are_handed_over",
        "tests/agent_slurm/test_submit.py::test_which_names_look_like_secrets",
    ),
}
