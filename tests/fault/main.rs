//! Single faults, on real processes and real servers: kills, pauses, cut and silent connections.
//!
//! Most of them wait for a time to pass, so that several run at once. What needs the machine for itself is in
//! `tests/campaigns/`.
//!
//! - [`role`]: this binary, started again as one of the processes.
//! - [`zombie`]: a holder that is stopped before its commit, and wakes after another process took over.
//! - [`dead_holder`]: a process that dies with a name in a transaction.
//! - [`queue`]: 200 waiters in 4 processes, which have their turns in order; [`queue_head`]: a process at the head of
//!   the queue is stopped or killed;
//!   [`queue_cut`]: connections are cut while tasks wait.
//! - [`full_disk`]: a disk of SQLite's that is full, and then has room again.
//! - [`jobs`]: jobs that machines with different clocks start, some of which are killed.
//! - [`leader_cut`]: a leader that cannot reach the database.
//! - [`late_record`]: an attempt that is stopped past its lease, and wakes after another process took over.
//! - [`late_response`]: the database is away, for longer than the lease, when a handler of the HTTP layer has
//!   finished.
//! - [`late_steps`]: statements about a step that reach the server after their caller has given up.
//! - [`late_token`]: a form token that is issued once more after it was used.
//! - [`late_requests`]: an acquire and a claim that reach the server after their caller has given up.
//! - [`cut`]: connections that are cut after the request.
//! - [`silence`]: a network that is slow, or silent.
//! - [`silent_server`]: a server that accepts connections and never answers.
//! - [`connections`]: how many a client has under load, when it is idle, and beside a list that hangs.
//! - [`starved`]: a pooler that has no connection left for rowlock.
#![allow(missing_docs, reason = "tests are named, not documented")]

mod connections;
mod cut;
mod dead_holder;
mod full_disk;
mod jobs;
mod late_record;
mod late_requests;
mod late_response;
mod late_steps;
mod late_token;
mod leader_cut;
mod queue;
mod queue_cut;
mod queue_head;
mod role;
mod silence;
mod silent_server;
mod starved;
mod zombie;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};
use rowlock::Engine;
use rowlock_test::{ENGINES, Kind, lone_trial, trial};

/// How many run at once, for each processor.
const AT_ONCE: usize = 3;

fn main() -> ExitCode {
    if let Some(role) = role::Role::of_this_process() {
        role.play();
        return ExitCode::SUCCESS;
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert_with(|| {
        let processors = std::thread::available_parallelism();
        processors.map_or(1, usize::from) * AT_ONCE
    });
    let engines = ENGINES.iter().copied();
    // The longest first. The machines of all engines wait for their rounds at the same time.
    let with_server = engines
        .clone()
        .filter(|engine| Kind::of(*engine).has_server);
    let mut trials: Vec<_> = with_server.clone().flat_map(long).collect();
    trials.push(lone_trial("judge_of_jobs", async || {
        jobs::the_judge_sees_violations();
    }));
    let in_file = engines
        .clone()
        .filter(|engine| !Kind::of(*engine).has_server);
    trials.extend(in_file.map(|engine| trial("full_disk", engine, full_disk::run)));
    trials.extend(engines.flat_map(on));
    trials.extend(with_server.flat_map(on_a_server));
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Those that wait for half a minute or longer.
fn long(engine: Engine) -> [Trial; 5] {
    [
        trial("connections_idle", engine, connections::idle),
        trial("jobs", engine, jobs::run),
        trial(
            "connections_beside_a_list",
            engine,
            connections::beside_a_list,
        ),
        trial("connections_kept", engine, connections::kept),
        trial("connections_under_load", engine, connections::under_load),
    ]
}

fn on(engine: Engine) -> [Trial; 7] {
    [
        trial("zombie", engine, zombie::run),
        trial("late_record", engine, late_record::run),
        trial("queue_in_order", engine, queue::in_order),
        trial("queue_with_losses", engine, queue::with_losses),
        trial("queue_stopped_head", engine, queue_head::stopped),
        trial("queue_killed_head", engine, queue_head::killed),
        trial("dead_holder", engine, dead_holder::run),
    ]
}

/// What needs a server to kill, or a network to cut.
fn on_a_server(engine: Engine) -> Vec<Trial> {
    let mut trials = vec![
        trial(
            "late_response_after_silence",
            engine,
            late_response::silence,
        ),
        trial("late_response_after_a_kill", engine, late_response::killed),
        trial("queue_cut_while_waiting", engine, queue_cut::waiting),
        trial("queue_cut_while_locked", engine, queue_cut::locked),
        trial("queue_cut_and_gone", engine, queue_cut::gone),
        trial("queue_cut_for_a_time", engine, queue_cut::trouble),
        trial("leader_cut_off", engine, leader_cut::cut_off),
        trial("cut_after_the_request", engine, cut::cut),
        trial("records_cut_after_the_request", engine, cut::records),
        trial("shared_after_a_cut", engine, cut::shared_after_a_cut),
        trial("late_sending", engine, late_requests::late_sending),
        trial("late_join", engine, late_requests::late_join),
        trial("late_reservation", engine, late_requests::late_reservation),
        trial("late_downgrade", engine, late_requests::late_downgrade),
        trial("late_claim", engine, late_requests::late_claim),
        trial("late_answers", engine, silence::late),
        trial("late_login", engine, silence::late_login),
        trial("quiet_after_a_loss", engine, silence::quiet),
        trial("late_step", engine, late_steps::begun),
        trial("late_token", engine, late_token::run),
        trial("starved", engine, starved::starved),
        trial("starved_while_a_lease_lingers", engine, starved::lingering),
        trial("silence", engine, silence::silence),
    ];
    // MySQL has no such limit.
    if engine != Engine::MySql {
        trials.push(trial(
            "silence_in_a_transaction",
            engine,
            silence::in_a_transaction,
        ));
    }
    if engine == Engine::Postgres {
        // On the other ones several requests say it, in a transaction: no other one can begin the step meanwhile.
        trials.push(trial(
            "late_word_on_a_step",
            engine,
            late_steps::begun_again,
        ));
    } else {
        // PostgreSQL is asked nothing beyond its login.
        trials.push(trial(
            "silent_after_login",
            engine,
            silent_server::after_login,
        ));
    }
    trials
}
