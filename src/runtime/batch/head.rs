//! The head of a job, which is all that a lane's schedule knows of it: its subject, its manner, and how far it has
//! come.

use std::time::Duration;

use crate::model::{Moment, Subject, Unfinished};

/// What happens to a job when its caller has gone or its connection broke.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Manner {
    /// It changes nothing. It is dropped when its caller has gone, and is never in doubt.
    Look,
    /// It is dropped when its caller goes before it was sent.
    Wish,
    /// A wish that fails at once on a read-only server: a caller that may wait asks again.
    Acquire,
    /// It is done even when no caller waits.
    Duty,
    /// A duty that is sent only once: a second sending might free the next holder's grant.
    Order,
    /// A duty that undoes an effect which may never arrive. It is repeated after long pauses, and no flush waits for
    /// it.
    Vigil,
}

/// What the lane's schedule knows of a task.
#[derive(Debug)]
pub(crate) struct JobHead {
    /// Two jobs on one subject never share a statement.
    pub(crate) subject: Option<Subject>,
    /// What the job does, for messages.
    pub(crate) doing: &'static str,
    pub(crate) manner: Manner,
    pub(crate) progress: Progress,
    /// It reports on an attempt. Such jobs keep their order, even when one of them is put off.
    pub(crate) in_order: bool,
    /// The size in bytes of the outcome that it writes, or is known to read.
    pub(crate) bytes: usize,
    /// What it adds to a request to the server, where requests are bounded: the bytes of its name, and other bytes.
    pub(crate) size: Option<(usize, usize)>,
}

impl JobHead {
    /// The head of a job that asks for a lock or a permit, until `give_up`.
    pub(crate) fn acquire(subject: Subject, give_up: Moment) -> Self {
        let progress = Progress::until(give_up);
        Self::new(subject, "acquire", Manner::Acquire, progress)
    }

    pub(crate) fn new(
        subject: impl Into<Option<Subject>>,
        doing: &'static str,
        manner: Manner,
        progress: Progress,
    ) -> Self {
        Self {
            subject: subject.into(),
            doing,
            manner,
            progress,
            in_order: false,
            bytes: 0,
            size: None,
        }
    }

    /// Marks the job as in doubt: the connection broke under it.
    pub(crate) fn doubt(&mut self) {
        if self.manner != Manner::Look {
            self.progress.doubts += 1;
        }
    }

    /// The size in bytes of the outcome that it writes.
    pub(crate) fn written(&self) -> usize {
        if self.manner == Manner::Look {
            0
        } else {
            self.bytes
        }
    }
}

impl Unfinished {
    /// The entry for a job that a lane leaves undone.
    pub(crate) fn of(head: &JobHead) -> Self {
        Self::new(head.doing, head.subject.clone())
    }
}

/// How far a job has come.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Progress {
    /// After this moment it is not tried again.
    pub(crate) give_up: Moment,
    /// It was sent and not answered: it may have taken effect, at least in part.
    pub(crate) sent: bool,
    /// How often the connection broke under it: the server may still run as many sendings, or get them late.
    pub(crate) doubts: u32,
    /// How often the connection broke under a statement that contained it.
    pub(crate) breaks: u32,
    /// The largest number of jobs, itself included, in its batch: small after its statements broke the connection.
    pub(crate) company: usize,
    /// How often it was put off.
    pub(crate) put_offs: u32,
    /// Its place in the order of arrival at the lane.
    pub(crate) number: u64,
}

impl Progress {
    pub(crate) fn within(limit: Duration) -> Self {
        Self::until(Moment::now() + limit)
    }

    pub(crate) fn until(give_up: Moment) -> Self {
        Self {
            give_up,
            sent: false,
            doubts: 0,
            breaks: 0,
            company: usize::MAX,
            put_offs: 0,
            number: 0,
        }
    }

    /// Whether an earlier sending of it may have taken effect.
    pub(crate) fn in_doubt(&self) -> bool {
        self.doubts > 0
    }

    /// The connection broke under a statement of `together` jobs that contained it. From break number `suspect_from`
    /// on, one of these jobs may be the cause: they are sent again in smaller batches.
    pub(crate) fn broke(&mut self, together: usize, suspect_from: u32) {
        self.breaks += 1;
        if self.breaks >= suspect_from {
            self.company = self.company.min((together / 16).max(1));
        }
    }

    /// The job was answered, so another job broke the connection.
    pub(crate) fn innocent(self) -> Self {
        Self {
            breaks: 0,
            company: usize::MAX,
            ..self
        }
    }
}

impl JobHead {
    /// The effect that it undoes may never arrive: no flush waits for it.
    pub(crate) fn repeat(&mut self) {
        self.manner = Manner::Vigil;
        self.progress = self.progress.innocent();
    }
}
