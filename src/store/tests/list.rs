//! The list of all cases.

/// Makes a test of each case.
macro_rules! queue_cases {
    ($place:expr) => {
        queue_cases! { $place;
            joining {
                a_free_name_is_granted
                a_held_name_is_waited_for
                a_join_that_was_sent_twice_finds_its_grant
                a_join_that_was_sent_twice_finds_its_waiter
                a_grant_that_is_found_needs_no_confirm
                a_queue_has_its_limit
            }
            confirming {
                a_confirm_in_time_holds
                a_second_confirm_moves_no_expiry_back
                fences_are_reserved_unless_they_are_ahead_of_the_clock
            }
            passing {
                a_name_is_passed_on_in_order
                dead_waiters_are_passed_over
                a_waiter_leaves
                a_waiter_whose_place_is_unknown_leaves
                a_waiter_leaves_when_it_was_just_granted_the_name
                a_confirm_that_is_too_late_holds_nothing
                a_window_that_is_over_is_passed_on
                a_window_ends_with_the_session_of_its_waiter
                only_what_is_due_is_passed_on
                the_lock_of_an_expired_session_is_passed_on
                the_lock_of_a_session_that_cannot_end_now_is_locked
                a_session_that_lives_keeps_its_lock
            }
            rows {
                a_release_passes_on
                a_batch_of_releases_passes_on
                a_take_overtakes_no_waiter
                a_take_gets_a_name_whose_waiters_have_died
                no_row_with_waiters_is_cleaned
                a_name_whose_waiters_are_dead_is_cleaned
                live_waiters_are_listed
            }
            pause {
                the_waiters_for_a_paused_name_look_again_at_its_end
                an_expired_lease_of_a_paused_name_is_passed_on_after_it
                the_waiters_for_permits_of_a_paused_name_look_again_at_its_end
                a_paused_name_is_listed_and_calls_a_lease_back
            }
            exchange {
                an_exchange_is_releases_and_takes
                an_exchange_keeps_its_asks_apart
                an_exchange_leaves_waiters_alone
                an_exchange_waits_for_no_transaction
                an_exchange_that_fails_leaves_nothing_open
                an_exchange_takes_what_the_dead_left
                an_exchange_passes_on_what_was_passed_on
            }
            records {
                an_exchange_of_records_answers_each_key_as_alone
                each_of_many_ends_keeps_its_own_outcome
                in_a_quarantine_attempts_end_and_none_begins
                an_exchange_of_records_waits_for_no_transaction
                an_exchange_of_records_that_fails_changes_nothing
                an_exchange_of_records_of_which_a_part_has_happened_is_in_doubt
            }
            in_tx {
                a_transaction_is_granted_a_free_lock_under_the_next_fence
                a_transaction_is_granted_no_lock_that_is_not_free
                a_transaction_that_is_over_is_told_so
            }
            exchange_stress {
                clients_exchange_names_at_random
            }
            permit_granting {
                permits_are_granted_up_to_the_capacity
                the_first_waiter_keeps_back_those_behind_it
                many_readers_or_one_writer
                a_permit_that_was_asked_for_twice_is_one
                the_queue_for_permits_has_its_limit
                a_name_has_one_kind_and_one_capacity
                a_permit_is_renewed_and_listed
                a_permit_gets_another_weight
                a_downgrade_lets_readers_in
                a_capacity_is_changed_in_use
                a_waiter_that_is_too_heavy_for_a_new_capacity_is_removed
                at_most_a_hundred_waiters_are_granted_at_once
                a_change_of_weight_grants_a_hundred_too
            }
            permit_ends {
                an_expired_permit_is_given_to_others
                a_window_that_is_over_costs_the_permit
                permits_end_with_their_session
                dead_waiters_for_permits_are_passed_over
                a_full_name_is_looked_at_again_when_a_permit_ends
                a_full_name_is_looked_at_once_for_a_while
                a_note_of_a_later_time_counts_for_nothing
                a_full_name_with_permits_of_a_session_is_looked_at_each_time
                a_pinned_permit_is_not_given_to_others
                a_pinned_permit_is_released_without_a_wait
                permits_that_were_removed_are_not_waited_for
                a_session_ends_with_all_its_permits
            }
            permit_edges {
                the_verbs_for_locks_leave_permits_alone
                the_verbs_for_permits_leave_locks_alone
                a_permit_that_has_ended_is_asked_for_again
                a_permit_that_ends_with_its_session_gets_no_weight
                no_name_with_permits_is_cleaned
                a_name_whose_holders_have_crashed_is_cleaned
                a_change_of_the_capacity_is_a_use
                a_transaction_takes_no_name_of_another_kind
                a_damaged_capacity_is_no_kind
            }
            deadlocks {
                what_an_owner_holds_is_told_and_forgotten
            }
            locked {
                a_locked_row_is_given_up_soon
                many_locked_rows_do_not_hold_up_a_request
            }
            stress {
                many_clients_keep_the_queue_in_order
            }
            permit_stress {
                many_clients_share_the_capacity_in_order
            }
        }
    };
    ($place:expr; $($room:ident { $($case:ident)* })*) => {
        $($(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let case = async { $crate::store::tests::$room::$case(&$place.await).await };
                $crate::store::tests::in_time(case).await;
            }
        )*)*
    };
}
pub(crate) use queue_cases;
