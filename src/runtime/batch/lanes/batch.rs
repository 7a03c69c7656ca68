//! A lane executes a batch: one statement for each kind of request (two kinds may share one, see
//! `requests/exchange.rs`), one answer for each caller.

use std::cmp::Ordering;

use super::Lane;
use super::batch_limits::{BESIDE_OUTCOME, MAX_CLAIM};
use crate::model::{Error, RecordError};
use crate::runtime::batch::job::{AnswerTime, Batch, Job, Next, Rank, SharedBatch};

impl Lane {
    /// Executes the jobs of a batch.
    pub(super) async fn execute(&mut self, jobs: Vec<Job>) {
        self.refused = false;
        self.read_only = None;
        self.jitter = fastrand::f64();
        for statement in self.statements(jobs) {
            let mut then = self.run(statement).await;
            while !then.is_empty() {
                let mut after = Vec::new();
                for statement in self.statements(then) {
                    after.extend(self.run(statement).await);
                }
                then = after;
            }
        }
    }

    /// Groups the jobs into statements: in the order of their turns, sorted by subject, as many in a statement as fit.
    /// A job that fits into no statement fails here: the server would end the connection, with all the other jobs on
    /// it.
    pub(super) fn statements(&self, mut jobs: Vec<Job>) -> Vec<Box<dyn Batch>> {
        let is_shared = |shared: &&SharedBatch| {
            jobs.iter().filter(|job| shared.has(job.rank())).count() >= shared.from
        };
        let shared: Vec<SharedBatch> = self.shared.iter().filter(is_shared).copied().collect();
        let shared_by = |rank| shared.iter().find(|shared| shared.has(rank));
        jobs.sort_by(|a, b| {
            // What frees something comes first.
            let by_kind = || match shared_by(a.rank()) {
                Some(_) => Ordering::Equal,
                None => a.may_grant().cmp(&b.may_grant()),
            };
            let by_turn = a.rank().cmp(&b.rank()).then_with(by_kind);
            by_turn.then_with(|| a.head().subject.cmp(&b.head().subject))
        });
        let mut statements: Vec<Box<dyn Batch>> = Vec::new();
        // The size of the last statement.
        let mut bytes = 0;
        for job in jobs {
            let written = job.head().written();
            if written > self.link.largest() {
                job.fail(Error::Record(RecordError::OutcomeTooLarge {
                    what: "the outcome",
                    bytes: written,
                    limit: self.link.largest(),
                }));
                continue;
            }
            // (Keys and the rest count as parts of the outcome.)
            let its = match job.rank() {
                Rank::Finish => written + BESIDE_OUTCOME,
                Rank::Claim => MAX_CLAIM,
                _ => 0,
            };
            let shared_batch = shared_by(job.rank());
            let last = statements.last_mut().filter(|last| {
                let is_its =
                    last.rank() == job.rank() || shared_batch.is_some_and(|it| it.has(last.rank()));
                is_its && (its == 0 || bytes + its <= self.link.largest())
            });
            let left = match last {
                Some(last) => last.join(job),
                None => Some(job),
            };
            if let Some(job) = left {
                statements.push(match shared_batch {
                    Some(shared_batch) => shared_batch.of(job),
                    None => job.into_batch(),
                });
                bytes = 0;
            }
            bytes += its;
        }
        statements
    }

    /// Sends one statement and answers its callers. Returns the jobs for the next statement.
    async fn run(&mut self, mut statement: Box<dyn Batch>) -> Vec<Job> {
        if !self.link.is_connected() || self.refused {
            let (mut jobs, followers) = statement.into_jobs();
            jobs.extend(followers);
            if let Some(fault) = self.read_only.clone() {
                // The server would refuse them too, so they need not wait for the statements before them.
                jobs = self.refuse_takes(jobs, &fault);
            }
            self.not_sent(jobs);
            return Vec::new();
        }
        let bound = self.link.operation_timeout();
        let sending = self.link.send(bound, &mut *statement);
        let result = self.post.beside(sending).await;
        let Some(sent) = self.link.sent() else {
            // Another link had the connection, or has lost it. The next statements need not wait, too.
            self.refused = true;
            let (mut jobs, followers) = statement.into_jobs();
            jobs.extend(followers);
            self.not_sent(jobs);
            return Vec::new();
        };
        let Err(fault) = result else {
            // The connection works again.
            self.trouble.calm();
            let took = sent.elapsed();
            return self.settle(statement.settle(AnswerTime { sent, took }));
        };
        let (jobs, followers) = statement.into_jobs();
        let mut then = Vec::new();
        for half in self.broke_off(jobs, followers, fault) {
            for statement in self.statements(half) {
                then.extend(Box::pin(self.run(statement)).await);
            }
        }
        then
    }

    fn settle(&mut self, all: Vec<Next>) -> Vec<Job> {
        let (mut answers, mut then) = (Vec::new(), Vec::new());
        let (mut first, mut later) = (Vec::new(), Vec::new());
        for next in all {
            match next {
                Next::Done => {}
                Next::Answer(answer) => answers.push(answer),
                Next::Later(job) => later.push(job),
                Next::First(job) => first.push(job),
                Next::Then(job) => then.push(job),
            }
        }
        self.post.send(answers, self.home.take());
        self.put_off(later);
        self.not_sent(first);
        then
    }
}
