//! Every property of the lease contract, as a case that runs on every store.
//!
//! A case takes a [`Fixture`], breaks it as it likes, and panics when the contract is
//! broken. What a store does not promise is read from its guarantees, never listed
//! by hand. [`for_each_case!`](crate::for_each_case) is the one list of all cases.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::fixture::{Fixture, StoreUnderTest};

pub mod acquiring;
pub mod batching;
pub mod keeping_records;
pub mod losing;
pub mod operating;
pub mod releasing;
pub mod running;
pub mod sharing;
pub mod tokens;
pub mod unknown;
pub mod waiting;

/// A case, as a value.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    /// Its name.
    pub name: &'static str,
    /// What it does.
    pub run: for<'a> fn(&'a Fixture) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>>,
}

/// Calls the macro `$do` with the path of every case, as `module::case`.
#[macro_export]
macro_rules! for_each_case {
    ($do:ident) => {
        $do! {
            acquiring::a_free_lock_is_granted_and_excludes_others,
            acquiring::a_released_lock_can_be_taken_again,
            acquiring::distinct_names_do_not_exclude_each_other,
            acquiring::patience_ends_with_who_holds_it,
            acquiring::patience_below_a_second_is_kept,
            acquiring::an_expired_lock_goes_to_another,
            acquiring::what_no_store_can_keep_is_refused,
            acquiring::a_cancelled_acquire_leaves_no_lock,
            acquiring::the_same_owner_gets_the_same_grant_again,
            unknown::a_lost_reply_is_adopted,
            unknown::a_lost_reply_to_try_is_not_reported_as_held,
            unknown::a_lost_request_is_asked_again,
            unknown::a_late_request_of_a_settled_owner_takes_nothing,
            unknown::a_late_request_of_a_cancelled_acquire_takes_nothing,
            unknown::a_refused_request_is_an_error_that_leaves_nothing,
            unknown::a_silent_store_is_an_error_in_bounded_time,
            unknown::a_grant_after_its_own_deadline_is_not_returned,
            unknown::a_late_grant_to_try_is_not_reported_as_held,
            waiting::a_waiter_gets_the_lock_on_release,
            waiting::clients_are_served_in_the_order_they_came,
            waiting::a_waiter_takes_over_at_expiry,
            waiting::a_cancelled_waiter_leaves_the_queue,
            waiting::a_waiter_without_patience_leaves_the_queue,
            waiting::a_waiter_that_vanished_does_not_block_the_queue,
            waiting::tasks_of_one_client_are_one_waiter,
            waiting::a_newcomer_does_not_overtake,
            waiting::a_pushed_grant_is_renewed_to_its_whole_term,
            waiting::a_pushed_grant_without_renewal_is_whole,
            waiting::a_grant_that_meets_a_cancellation_is_passed_on,
            losing::loss_fires_at_the_deadline_when_the_store_is_silent,
            losing::loss_fires_at_the_deadline_in_doubt_as_well,
            losing::the_holder_knows_before_the_next_one_starts,
            losing::the_deadline_counts_from_before_the_request,
            losing::the_drift_is_taken_off_the_deadline,
            losing::a_renewed_lease_outlives_its_ttl,
            losing::without_renewal_the_ttl_is_the_whole_term,
            losing::max_hold_ends_it,
            losing::doubt_pauses_the_checkpoint_until_proved_again,
            losing::doubt_that_must_stop_is_loss_at_once,
            losing::doubt_is_proved_a_bounded_number_of_times,
            losing::renewal_never_takes_a_lost_lock_again,
            losing::a_forced_holder_is_told_and_why,
            losing::a_process_that_slept_learns_on_the_first_call,
            losing::verify_asks_the_store,
            losing::a_lease_taken_by_another_is_lost_at_once,
            losing::loss_cancels_the_token,
            releasing::a_lost_lease_cannot_be_released,
            releasing::a_lost_reply_to_release_is_a_release,
            releasing::nobody_else_can_release_or_renew,
            releasing::a_dropped_lease_is_released,
            releasing::a_dropped_release_goes_on,
            releasing::nothing_is_renewed_after_release,
            releasing::a_late_release_does_not_end_a_newer_lease,
            releasing::a_silent_store_does_not_hang_a_release,
            tokens::rise_over_release_expiry_and_force,
            tokens::rise_when_the_clock_goes_back,
            tokens::rise_for_every_client,
            tokens::survive_a_restart_of_the_store,
            tokens::stay_portable,
            running::the_work_runs_under_the_lock_and_gives_its_result,
            running::the_lock_is_released_when_the_work_fails,
            running::the_work_is_not_polled_after_a_loss,
            running::work_that_ended_too_late_is_an_error,
            running::a_cancelled_run_releases,
            batching::claims_in_flight_travel_together,
            batching::one_lock_is_claimed_once_in_a_batch,
            batching::a_batch_that_fails_is_sent_one_by_one,
            batching::renewals_travel_together,
            sharing::weights_never_exceed_the_capacity,
            sharing::readers_share_and_a_writer_is_alone,
            sharing::a_writer_that_was_passed_over_queues_again,
            sharing::a_heavy_claim_is_not_starved,
            sharing::a_reader_that_is_gone_lets_the_writer_in,
            sharing::another_capacity_is_refused,
            sharing::kinds_of_one_name_do_not_exclude_each_other,
            sharing::locks_that_belong_together_are_taken_all_or_none,
            sharing::a_force_release_of_another_token_ends_nobody,
            sharing::a_force_release_of_one_owner_leaves_the_others,
            keeping_records::a_record_is_written_only_under_a_live_lease,
            keeping_records::a_write_of_an_old_version_is_refused,
            keeping_records::a_record_outlives_its_lease_but_not_its_term,
            keeping_records::a_watcher_sees_every_write_in_order,
            operating::inspect_tells_who_since_when_and_how_long,
            operating::list_takes_its_prefix_literally,
            operating::a_force_release_is_recorded,
            operating::a_force_release_needs_a_reason_and_a_holder,
            operating::events_tell_the_life_of_a_lease,
            operating::events_tell_why_an_acquisition_ended,
            operating::a_store_that_promises_less_is_refused,
        }
    };
}

macro_rules! list {
    ($($module:ident :: $case:ident,)*) => {
        /// All cases.
        pub const CASES: &[Case] = &[
            $(Case {
                name: stringify!($case),
                run: |fixture| Box::pin($module::$case(fixture)),
            },)*
        ];
    };
}
for_each_case!(list);

/// How many cases are tried at a time by [`run_all`]: most of them wait for time to pass.
const AT_A_TIME: usize = 6;

/// Runs every case on one store, some at a time, each with clients and locks of its own.
/// For stores behind a server that is slow to start.
///
/// # Panics
///
/// With the names of the cases that the store does not pass.
pub fn run_all(store: Arc<dyn StoreUnderTest>) {
    let left = Mutex::new(CASES.iter());
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(|| {
                loop {
                    // Not in the loop's head, which would keep the guard.
                    let next = left.lock().next();
                    let Some(case) = next else { return };
                    let tried = catch_unwind(AssertUnwindSafe(|| run(*case, store.clone())));
                    if tried.is_err() {
                        failed.lock().push(case.name);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner();
    assert!(failed.is_empty(), "{} of {} cases failed: {failed:#?}", failed.len(), CASES.len());
}

/// One case, in a runtime with one thread: what stops it stops its clients.
fn run(case: Case, store: Arc<dyn StoreUnderTest>) {
    eprintln!("case {}", case.name);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    runtime.block_on(async move { (case.run)(&Fixture::new(store, None)).await });
    runtime.shutdown_background();
}
