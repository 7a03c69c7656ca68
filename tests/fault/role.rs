//! The parts that a process of this program can play.

use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::{dead_holder, full_disk, jobs, late_record, queue, zombie};

pub(crate) type Role = rowlock_test::Role<Part>;

/// Whose process this is.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) enum Part {
    Zombie {
        pinned: bool,
    },
    DeadHolder(Holding),
    LateRecord,
    FullDisk,
    Queue {
        process: usize,
        waiters: usize,
        plan: queue::Plan,
    },
    Machine(jobs::Machine),
}

/// How a process holds the name that it dies with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Holding {
    Pessimistic,
    Optimistic,
    Pinned,
    /// In the session of its client.
    InSession,
}

impl rowlock_test::Part for Part {
    async fn play(role: &Role) {
        match role.part {
            Self::Zombie { pinned } => zombie::hold(role, pinned).await,
            Self::DeadHolder(holding) => dead_holder::hold(role, holding).await,
            Self::LateRecord => late_record::attempt(role).await,
            Self::FullDisk => full_disk::play(role).await,
            Self::Queue {
                process,
                waiters,
                plan,
            } => queue::wait(role, process, waiters, plan).await,
            Self::Machine(machine) => jobs::work(role, machine).await,
        }
    }

    fn prepare(&self, command: &mut Command) {
        if let Self::Machine(machine) = self {
            jobs::moved(command, machine.skew);
        }
    }
}
