//! What the lane's schedule knows of a job: what it is about, what may become of it, how far it has come.

use std::time::Duration;

use crate::model::{Moment, Subject, Unfinished};

/// What becomes of a job whose caller has gone, or whose connection broke.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Manner {
    /// It changes nothing: it is left undone when its caller has gone, and is never in doubt.
    Look,
    /// It is left undone when its caller has gone before it was sent.
    Wish,
    /// A wish that a server which takes no writes refuses at once: who may wait asks again.
    Acquire,
    /// It is done whether or not a caller waits.
    Duty,
    /// A duty that is sent once: sent again it might free the next holder's grant.
    Order,
    /// A duty that undoes what may never come: it is repeated after long pauses, and no flush waits for it.
    Vigil,
}

/// What the lane's schedule knows of a task.
#[derive(Debug)]
pub(crate) struct Head {
    /// What it is about; two jobs on one subject never share a statement.
    pub(crate) subject: Option<Subject>,
    /// What is tried, for messages.
    pub(crate) doing: &'static str,
    pub(crate) manner: Manner,
    pub(crate) fate: Fate,
    /// It says something about an attempt: such jobs keep their order, also when one of them is put off.
    pub(crate) in_order: bool,
    /// The size of the outcome that it writes, or is known to bring, in bytes.
    pub(crate) bytes: usize,
    /// What it takes of a request to the server beside the rest, where that is bounded: the bytes of its name, and others.
    pub(crate) request: Option<(usize, usize)>,
}

impl Head {
    pub(crate) fn new(
        subject: impl Into<Option<Subject>>,
        doing: &'static str,
        manner: Manner,
        fate: Fate,
    ) -> Self {
        Self {
            subject: subject.into(),
            doing,
            manner,
            fate,
            in_order: false,
            bytes: 0,
            request: None,
        }
    }

    /// The connection broke under it.
    pub(crate) fn doubt(&mut self) {
        if self.manner != Manner::Look {
            self.fate.doubts += 1;
        }
    }

    /// How large the outcome is that it writes, in bytes.
    pub(crate) fn written(&self) -> usize {
        if self.manner == Manner::Look {
            0
        } else {
            self.bytes
        }
    }
}

impl Unfinished {
    /// A job that a lane leaves undone.
    pub(crate) fn of(head: &Head) -> Self {
        Self::new(head.doing, head.subject.clone())
    }
}

/// How far a job has come.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fate {
    /// From here on it is not tried again.
    pub(crate) give_up: Moment,
    /// It was sent and not answered: it may have happened, at least in part.
    pub(crate) sent: bool,
    /// How often the connection broke under it: the server may be working on as many sendings still, or get them late.
    pub(crate) doubts: u32,
    /// How often the connection broke under a statement that it was in.
    pub(crate) breaks: u32,
    /// With how many others, and itself, it may share a batch: few, when statements that it is in break the connection.
    pub(crate) company: usize,
    /// How often it was put off.
    pub(crate) put_offs: u32,
    /// Its place among all that have arrived at the lane.
    pub(crate) number: u64,
}

impl Fate {
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

    /// Whether an earlier sending of it may have happened.
    pub(crate) fn in_doubt(&self) -> bool {
        self.doubts > 0
    }

    /// The connection broke under a statement that it was in, with as many others and itself. From break number
    /// `suspect_from` on, one of the jobs may be what breaks it: they are sent again with fewer others.
    pub(crate) fn broke(&mut self, together: usize, suspect_from: u32) {
        self.breaks += 1;
        if self.breaks >= suspect_from {
            self.company = self.company.min((together / 16).max(1));
        }
    }

    /// It was answered: something else broke the connection.
    pub(crate) fn innocent(self) -> Self {
        Self {
            breaks: 0,
            company: usize::MAX,
            ..self
        }
    }
}

impl Head {
    /// What it looks for may never come: no flush waits for it.
    pub(crate) fn repeat(&mut self) {
        self.manner = Manner::Vigil;
        self.fate = self.fate.innocent();
    }
}
