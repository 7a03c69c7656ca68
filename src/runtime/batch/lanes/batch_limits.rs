//! How much goes into a batch, and into a statement.

use std::collections::HashMap;

use crate::runtime::batch::head::Manner;
use crate::runtime::batch::job::{AnyTask, Rank};
use crate::store::driver::request::RequestLimit;

/// The most jobs in one statement.
pub(super) const MAX_BATCH: usize = 256;
/// The most jobs in one batch that join or leave a queue. Each is a statement of its own, and waits for some 20 ms if
/// its row is locked: the other jobs of the lane wait for so many.
pub(super) const MAX_JOINS: usize = 8;
/// The outcomes in one statement are at most a little larger than this: servers limit a statement (MariaDB to 16 MiB).
pub(crate) const MAX_BYTES: usize = 1 << 20;
/// The most bytes that the end of an attempt adds to its outcome.
pub(super) const BESIDE_OUTCOME: usize = 1 << 10;

/// The most bytes that a claim adds, as a part of the outcome: its key and its holder.
pub(super) const MAX_CLAIM: usize = 3 << 10;

/// The room that is left in a batch.
#[derive(Debug)]
pub(super) struct Room {
    limit: RequestLimit,
    pub(super) jobs: usize,
    /// The jobs that join or leave a queue.
    joins: usize,
    /// Bytes of the statements whose requests are bounded.
    requests: HashMap<Rank, usize>,
    /// Bytes of outcomes to write.
    written: usize,
    /// Bytes of outcomes to read, where they are known to be large.
    read: usize,
}

impl Room {
    pub(super) fn of(limit: RequestLimit) -> Self {
        Self {
            limit,
            jobs: 0,
            joins: 0,
            requests: HashMap::new(),
            written: 0,
            read: 0,
        }
    }

    pub(super) fn take(&mut self, job: &dyn AnyTask) -> bool {
        let joins = matches!(job.rank(), Rank::Join | Rank::Leave);
        if self.jobs == MAX_BATCH || joins && self.joins == MAX_JOINS {
            return false;
        }
        if let Some((name, rest)) = job.head().size {
            let used = self.requests.entry(job.rank()).or_default();
            if !self.limit.admits(used, name, rest) {
                return false;
            }
        }
        let fits = self.take_outcome(job);
        self.joins += usize::from(fits && joins);
        fits
    }

    fn take_outcome(&mut self, job: &dyn AnyTask) -> bool {
        let size = job.head().bytes;
        let bytes = if job.head().manner == Manner::Look {
            &mut self.read
        } else {
            &mut self.written
        };
        let fits = size == 0 || *bytes <= MAX_BYTES;
        if fits {
            self.jobs += 1;
            *bytes += size;
        }
        fits
    }
}
