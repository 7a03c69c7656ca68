//! The work that a client had not finished when its shutdown returned.

use std::borrow::Cow;
use std::fmt;

use super::Subject;

/// An operation or a thread that was still running when [`Rowlock::shutdown`](crate::Rowlock::shutdown) returned.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unfinished {
    /// The operation or thread, for people to read: `release`, `hold`, `the thread rowlock-lanes`.
    pub what: Cow<'static, str>,
    /// The lock or the record that it works on. `None` for a thread.
    pub on: Option<Subject>,
}

impl Unfinished {
    /// A thread of rowlock's own.
    pub(crate) fn thread(name: &str) -> Self {
        Self::new(format!("the thread {name}"), None)
    }

    pub(crate) fn new(what: impl Into<Cow<'static, str>>, on: Option<Subject>) -> Self {
        let what = what.into();
        Self { what, on }
    }
}

impl fmt::Display for Unfinished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.on {
            Some(on) => write!(f, "{} {on}", self.what),
            None => f.write_str(&self.what),
        }
    }
}
