//! Campaigns: many processes at work for a time, some of which are killed and paused, and a judge of what they did.
//!
//! On two processors three run at once, because they pause now and then. Alone (`--test-threads=1`) they tell how soon
//! a name is free again.
//! Single faults are in `tests/fault/`.
//!
//! - [`role`]: this binary, started again as one of the processes.
//! - [`campaign`]: 8 processes on 3 names, one of them killed or paused every 100 ms. [`worker`] is one process.
//! - [`history`]: what the processes did, and the checker that judges it.
//! - [`histories`]: leases and permits of processes that are killed and paused, judged by a checker of
//!   linearizability.
//! - [`server_kill`]: the database server is killed with SIGKILL in the middle of the traffic.
//! - [`killed`]: the server cuts statements, or ends sessions, at any moment.
//! - [`pace`]: when the next process is killed or paused.
//! - [`modes`]: 200 tasks in 4 processes, each in a mode of its own choice.
//! - [`philosophers`]: processes that wait for each other in a circle.
//! - [`quorum`]: a lock over five databases, of which up to two are away.
//! - [`leader`]: leaders that are killed and paused while they act.
//! - [`effects`]: keys that are run again and again by processes that are killed, in sessions with unusual settings.
//! - [`payments`]: the shop of the example in several processes that are killed, and clients that insist.
#![allow(missing_docs, reason = "tests are named, not documented")]

mod campaign;
mod effects;
mod histories;
mod history;
mod killed;
mod leader;
mod modes;
mod pace;
mod payments;
mod philosophers;
mod quorum;
mod role;
mod server_kill;
mod worker;

use std::process::ExitCode;

use histories::{Flaw, Variant};
use killed::Victim;
use libtest_mimic::{Arguments, Trial};
use rowlock::Engine;
use rowlock_test::{ENGINES, Kind, lone_trial, trial};

fn main() -> ExitCode {
    if let Some(role) = role::Role::of_this_process() {
        role.play();
        return ExitCode::SUCCESS;
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert_with(|| {
        std::thread::available_parallelism().map_or(1, |processors| usize::from(processors) * 3 / 2)
    });
    let mut trials = the_judges();
    trials.extend(quorums());
    trials.extend(ENGINES.iter().flat_map(|engine| on(*engine)));
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn on(engine: Engine) -> Vec<Trial> {
    let mut trials = vec![
        trial("campaign", engine, campaign::run),
        trial("histories", engine, histories::run),
        trial("permit_histories", engine, histories::permits),
        trial("modes", engine, modes::run),
        trial("philosophers", engine, |engine| {
            philosophers::run(engine, false)
        }),
        trial("philosophers_with_multi_locks", engine, |engine| {
            philosophers::run(engine, true)
        }),
        trial("leaders", engine, leader::run),
        trial(
            "leaders_without_a_pin_are_refused",
            engine,
            leader::without_a_pin,
        ),
        trial("effects", engine, effects::run),
        trial("payments", engine, payments::run),
        trial("superseded_payment", engine, payments::superseded),
    ];
    if Kind::of(engine).has_server {
        trials.push(trial("server_kill", engine, server_kill::run));
        for (name, what) in [
            ("killed_statements", Victim::Statements),
            ("killed_sessions", Victim::Sessions),
        ] {
            trials.push(trial(name, engine, move |engine| killed::run(engine, what)));
        }
    }
    trials
}

fn quorums() -> [Trial; 3] {
    [
        lone_trial("quorum", quorum::run),
        lone_trial("quorum_forgotten", quorum::forgotten),
        lone_trial(
            "quorum_forgotten_without_a_quarantine",
            quorum::forgotten_without_a_quarantine,
        ),
    ]
}

/// Histories that a judge must accept, and others that it must refuse.
fn the_judges() -> Vec<Trial> {
    let mut trials = vec![
        lone_trial("judge_of_histories", async || {
            histories::the_checker_sees_violations();
        }),
        lone_trial("judge_of_leaders", async || {
            leader::the_judge_sees_violations();
        }),
        lone_trial("judge_of_effects", async || {
            effects::the_judge_sees_violations();
        }),
    ];
    for (name, variant) in [
        ("sound_leases_are_accepted", Variant::Sound),
        (
            "leases_without_a_look_at_the_expiry_are_refused",
            Variant::Blind,
        ),
        (
            "leases_that_delete_on_release_are_refused",
            Variant::Forgetful,
        ),
        (
            "sound_leases_that_are_passed_on_are_accepted",
            Variant::Queue,
        ),
        (
            "leases_that_are_passed_on_by_a_stale_queue_are_refused",
            Variant::Stale,
        ),
    ] {
        trials.push(trial(name, Engine::Sqlite, move |_| {
            histories::raw(variant)
        }));
    }
    for (name, flaw) in [
        ("sound_permits_are_accepted", Flaw::Nothing),
        (
            "permits_without_a_look_at_the_expiry_are_refused",
            Flaw::Blind,
        ),
        ("permits_by_a_stale_sum_are_refused", Flaw::Stale),
        ("permits_without_weights_are_refused", Flaw::Weightless),
        ("readers_with_new_fences_are_refused", Flaw::Fences),
        ("upgrades_beside_readers_are_refused", Flaw::Crowded),
    ] {
        trials.push(trial(name, Engine::Sqlite, move |_| {
            histories::raw_permits(flaw)
        }));
    }
    trials
}
