//! The processes of the candidates, which are killed and paused.

use std::time::Instant;

use nix::sys::signal::Signal;
use rand::Rng;
use rowlock_test::{Db, Process};

use super::{Means, PROCESSES, TTL};
use crate::role::{Part, Role};

struct Candidate {
    number: i64,
    process: Process,
    /// It is paused until then.
    wakes: Option<Instant>,
}

/// The candidates. Dropping this kills all of them.
pub(super) struct Candidates {
    all: Vec<Candidate>,
    role: Role,
    means: Means,
    /// The number of the next candidate: each process has its own.
    next: i64,
    pub(super) kills: u32,
    pub(super) pauses: u32,
}

impl Candidates {
    pub(super) fn start(db: &Db, means: Means) -> Self {
        let role = Role {
            part: Part::Leader {
                candidate: 0,
                means,
            },
            url: db.url.clone(),
            ttl: TTL,
        };
        let mut candidates = Self {
            all: Vec::new(),
            role,
            means,
            next: 1,
            kills: 0,
            pauses: 0,
        };
        for _ in 0..PROCESSES {
            candidates.add();
        }
        candidates
    }

    fn add(&mut self) {
        let (candidate, means) = (self.next, self.means);
        let part = Part::Leader { candidate, means };
        let role = Role {
            part,
            ..self.role.clone()
        };
        self.next += 1;
        self.all.push(Candidate {
            number: candidate,
            process: Process::start(&role),
            wakes: None,
        });
    }

    /// Where this candidate is, if it is awake.
    fn awake_one(&self, number: i64) -> Option<usize> {
        let mut all = self.all.iter();
        all.position(|one| one.number == number && one.wakes.is_none())
    }

    /// Kills a candidate that is awake, and starts another one.
    pub(super) fn kill(&mut self, number: i64) -> Option<()> {
        let mut killed = self.all.swap_remove(self.awake_one(number)?);
        killed.process.kill();
        self.kills += 1;
        self.add();
        Some(())
    }

    /// Pauses a candidate that is awake, for longer than its TTL.
    pub(super) fn pause(&mut self, number: i64) -> Option<()> {
        let at = self.awake_one(number)?;
        let pause = rand::rng().random_range(1.3..=3.0);
        self.all[at].process.stop();
        self.all[at].wakes = Some(Instant::now() + TTL.mul_f64(pause));
        self.pauses += 1;
        Some(())
    }

    /// Lets those go on whose pause is over at this time.
    pub(super) fn wake(&mut self, now: Instant) {
        for one in &mut self.all {
            if one.wakes.is_some_and(|wakes| wakes <= now) {
                one.process.signal(Signal::SIGCONT);
                one.wakes = None;
            }
        }
    }

    /// When the last one wakes that is paused.
    pub(super) fn next_wake(&self) -> Option<Instant> {
        self.all.iter().filter_map(|one| one.wakes).max()
    }

    /// How many are awake.
    pub(super) fn awake(&self) -> usize {
        let all = self.all.iter();
        all.filter(|one| one.wakes.is_none()).count()
    }
}
