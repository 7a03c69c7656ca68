//! Faults, on real processes and real servers: kills, pauses, cut and silent connections.
//!
//! - [`role`]: this binary, started again as one of the processes.
//! - [`campaign`]: 8 processes on 3 names, one of them killed or paused every 100 ms. [`worker`] is one process.
//! - [`history`]: what the processes did, and the checker that judges it.
//! - [`histories`]: leases and permits of processes that are killed and paused, judged by a checker of linearizability.
//! - [`server_kill`]: the database server is killed with SIGKILL in the middle of the traffic.
//! - [`zombie`]: a holder that is stopped before its commit, and wakes after another process took over.
//! - [`dead_holder`]: a process that dies with a name in a transaction.
//! - [`modes`]: 200 tasks in 4 processes, each in a mode of its own choice.
//! - [`queue`]: 200 waiters in 4 processes, which have their turns in order; [`queue_head`]: a process at the head of the queue is stopped or killed;
//!   [`queue_cut`]: connections are cut while tasks wait.
//! - [`quorum`]: a lock over five databases, of which up to two are away.
//! - [`jobs`]: jobs that machines with different clocks start, some of which are killed.
//! - [`leader`]: leaders that are killed and paused while they act.
//! - [`late_record`]: an attempt that is stopped past its lease, and wakes after another process took over.
//! - [`late_response`]: the database is away, for longer than the lease, when a handler of the HTTP layer has finished.
//! - [`late_steps`]: statements about a step that reach the server after their caller has given up.
//! - [`late_token`]: a form token that is issued once more after it was used.
//! - [`late_requests`]: an acquire and a claim that reach the server after their caller has given up.
//! - [`payments`]: the shop of the example in several processes that are killed, and clients that insist.
//! - [`cut`]: connections that are cut after the request.
//! - [`silence`]: a network that is slow, or silent.
//! - [`silent_server`]: a server that accepts connections and never answers.
//! - [`starved`]: a pooler that has no connection left for rowlock.
//!
//! [`crew`] kills and pauses processes at random. [`proxy`] stands between a client and its server, where the network is what fails.
#![allow(missing_docs, reason = "tests are named, not documented")]

mod campaign;
mod crew;
mod cut;
mod dead_holder;
mod histories;
mod history;
mod jobs;
mod late_record;
mod late_requests;
mod late_response;
mod late_steps;
mod late_token;
mod leader;
mod modes;
mod payments;
mod philosophers;
mod proxy;
mod queue;
mod queue_cut;
mod queue_head;
mod quorum;
mod role;
mod server_kill;
mod silence;
mod silent_server;
mod starved;
mod worker;
mod zombie;

use std::process::ExitCode;

use histories::{Flaw, Variant};
use libtest_mimic::{Arguments, Failed, Trial};
use rowlock::Engine;

fn main() -> ExitCode {
    if let Some(role) = role::Role::of_this_process() {
        role.play();
        return ExitCode::SUCCESS;
    }
    let mut arguments = Arguments::from_args();
    // Each has the machine for itself: they measure when a name is free again.
    arguments.test_threads = Some(1);
    let mut trials = the_judge_of_histories();
    for &engine in rowlock_test::ENGINES {
        trials.push(trial("campaign", engine, move || {
            block_on(campaign::run(engine));
        }));
        trials.push(trial("histories", engine, move || {
            block_on(histories::run(engine));
        }));
        trials.push(trial("permit_histories", engine, move || {
            block_on(histories::permits(engine));
        }));
        trials.push(trial("zombie", engine, move || {
            block_on(zombie::run(engine));
        }));
        trials.push(trial("dead_holder", engine, move || {
            block_on(dead_holder::run(engine));
        }));
        trials.push(trial("modes", engine, move || block_on(modes::run(engine))));
        trials.extend(queues(engine).into_iter().chain(machines(engine)));
        trials.push(trial("late_record", engine, move || {
            block_on(late_record::run(engine));
        }));
        trials.push(trial("payments", engine, move || {
            block_on(payments::run(engine));
        }));
        trials.push(trial("superseded_payment", engine, move || {
            block_on(payments::superseded(engine));
        }));
        if !rowlock_test::Kind::of(engine).has_server {
            continue; // no server to kill, no network to cut
        }
        trials.push(trial("server_kill", engine, move || {
            block_on(server_kill::run(engine));
        }));
        trials.push(trial("cut_after_the_request", engine, move || {
            block_on(cut::cut(engine));
        }));
        trials.push(trial("records_cut_after_the_request", engine, move || {
            block_on(cut::records(engine));
        }));
        trials.push(trial("shared_after_a_cut", engine, move || {
            block_on(cut::shared_after_a_cut(engine));
        }));
        trials.push(trial("late_sending", engine, move || {
            block_on(late_requests::late_sending(engine));
        }));
        trials.push(trial("late_join", engine, move || {
            block_on(late_requests::late_join(engine));
        }));
        trials.push(trial("late_downgrade", engine, move || {
            block_on(late_requests::late_downgrade(engine));
        }));
        trials.push(trial("late_answers", engine, move || {
            block_on(silence::late(engine));
        }));
        trials.push(trial("late_login", engine, move || {
            block_on(silence::late_login(engine));
        }));
        trials.push(trial("quiet_after_a_loss", engine, move || {
            block_on(silence::quiet(engine));
        }));
        trials.push(trial("late_claim", engine, move || {
            block_on(late_requests::late_claim(engine));
        }));
        trials.push(trial("late_step", engine, move || {
            block_on(late_steps::begun(engine));
        }));
        // On the other ones several requests say it, in a transaction: no other one can begin the step meanwhile.
        if engine == Engine::Postgres {
            trials.push(trial("late_word_on_a_step", engine, move || {
                block_on(late_steps::begun_again(engine));
            }));
        }
        trials.push(trial("late_token", engine, move || {
            block_on(late_token::run(engine));
        }));
        trials.push(trial("starved", engine, move || {
            block_on(starved::starved(engine));
        }));
        trials.push(trial("late_response_after_silence", engine, move || {
            block_on(late_response::silence(engine));
        }));
        trials.push(trial("late_response_after_a_kill", engine, move || {
            block_on(late_response::killed(engine));
        }));
        // PostgreSQL is asked nothing beyond its login.
        if engine != Engine::Postgres {
            trials.push(trial("silent_after_login", engine, move || {
                block_on(silent_server::after_login(engine));
            }));
        }
        trials.push(trial("silence", engine, move || {
            block_on(silence::silence(engine));
        }));
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Waiting in the queue of a name.
fn queues(engine: Engine) -> Vec<Trial> {
    let mut trials = vec![
        trial("queue_in_order", engine, move || {
            block_on(queue::in_order(engine));
        }),
        trial("queue_with_losses", engine, move || {
            block_on(queue::with_losses(engine));
        }),
        trial("queue_stopped_head", engine, move || {
            block_on(queue_head::stopped(engine));
        }),
        trial("queue_killed_head", engine, move || {
            block_on(queue_head::killed(engine));
        }),
        trial("philosophers", engine, move || {
            block_on(philosophers::run(engine, false));
        }),
        trial("philosophers_with_multi_locks", engine, move || {
            block_on(philosophers::run(engine, true));
        }),
    ];
    if rowlock_test::Kind::of(engine).has_server {
        trials.push(trial("queue_cut_while_waiting", engine, move || {
            block_on(queue_cut::waiting(engine));
        }));
        trials.push(trial("queue_cut_and_gone", engine, move || {
            block_on(queue_cut::gone(engine));
        }));
    }
    trials
}

/// Leaders that are killed and paused, and one that is cut off; jobs on machines whose clocks differ.
fn machines(engine: Engine) -> Vec<Trial> {
    let mut trials = vec![
        trial("leaders", engine, move || block_on(leader::run(engine))),
        trial("leaders_without_a_pin_are_refused", engine, move || {
            block_on(leader::without_a_pin(engine));
        }),
    ];
    if rowlock_test::Kind::of(engine).has_server {
        trials.push(trial("leader_cut_off", engine, move || {
            block_on(leader::cut_off(engine));
        }));
        trials.push(trial("jobs", engine, move || block_on(jobs::run(engine))));
    }
    trials
}

/// Histories that it must accept, and others that it must refuse.
fn the_judge_of_histories() -> Vec<Trial> {
    let mut trials = vec![
        Trial::test("quorum", || {
            block_on(quorum::run());
            Ok(())
        }),
        Trial::test("quorum_forgotten", || {
            block_on(quorum::forgotten());
            Ok(())
        }),
        Trial::test("quorum_forgotten_without_a_quarantine", || {
            block_on(quorum::forgotten_without_a_quarantine());
            Ok(())
        }),
        Trial::test("histories_by_hand", || {
            histories::the_checker_sees_violations();
            Ok(())
        }),
        Trial::test("leaders_by_hand", || {
            leader::the_judge_sees_violations();
            Ok(())
        }),
        Trial::test("jobs_by_hand", || {
            jobs::the_judge_sees_violations();
            Ok(())
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
        trials.push(trial(name, Engine::Sqlite, move || {
            block_on(histories::raw(variant));
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
        trials.push(trial(name, Engine::Sqlite, move || {
            block_on(histories::raw_permits(flaw));
        }));
    }
    trials
}

fn trial(name: &str, engine: Engine, body: impl FnOnce() + Send + 'static) -> Trial {
    Trial::test(format!("{name}::{engine}"), move || {
        body();
        Ok::<(), Failed>(())
    })
}

fn block_on(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    runtime.unwrap().block_on(test);
}
