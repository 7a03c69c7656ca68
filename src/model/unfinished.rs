//! What a client that was shut down has not finished.

use std::borrow::Cow;
use std::fmt;

use super::Subject;

/// Something that had not ended when [`Rowlock::shutdown`](crate::Rowlock::shutdown) returned.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unfinished {
    /// What is unfinished, for people: `release`, `hold`, `the thread rowlock-lanes`.
    pub what: Cow<'static, str>,
    /// The lock or the record that it is about, if it is about one.
    pub on: Option<Subject>,
}

impl Unfinished {
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
