//! The state of a lane's connection: when the next one may be made, and which error callers get.

use std::time::Duration;

use backon::ExponentialBackoff;

use crate::model::{Error, FaultKind, Moment};
use crate::runtime::base::backoff;
use crate::store::verbs::fault::Fault;

#[derive(Debug)]
pub(super) struct Trouble {
    /// Why the last statement or connection failed, for messages.
    fault: Option<Fault>,
    /// No connection is made before this moment.
    dial_at: Moment,
    /// `None` while statements succeed: the first connection that breaks is made anew at once.
    backoff: Option<ExponentialBackoff>,
}

impl Trouble {
    pub(super) fn none(now: Moment) -> Self {
        Self {
            fault: None,
            dial_at: now,
            backoff: None,
        }
    }

    /// The connection is lost. The first time a new one is made at once, later after growing pauses, until a statement
    /// succeeds.
    pub(super) fn strike(&mut self, fault: Fault, now: Moment) {
        self.fault = Some(fault);
        let pause = match &mut self.backoff {
            Some(backoff) => backoff.next().unwrap_or_default(),
            None => Duration::ZERO,
        };
        self.backoff.get_or_insert_with(backoff::reconnect);
        self.dial_at = now + pause;
    }

    /// A statement was refused; the connection is intact.
    pub(super) fn refused(&mut self, fault: Fault) {
        self.fault = Some(fault);
    }

    /// A statement succeeded: the trouble is over.
    pub(super) fn calm(&mut self) {
        self.backoff = None;
        self.fault = None;
    }

    pub(super) fn dial_at(&self) -> Moment {
        self.dial_at
    }

    /// The error for an operation that had no effect, when its time is over.
    pub(super) fn error(&self, doing: &'static str, target: &str) -> Error {
        match &self.fault {
            Some(fault) if fault.kind == FaultKind::ReadOnly => {
                fault.clone().into_error(doing, target)
            }
            _ => Error::Unreachable {
                target: target.into(),
                detail: self.detail(),
            },
        }
    }

    /// The cause, as text.
    pub(super) fn detail(&self) -> String {
        self.fault
            .as_ref()
            .map_or_else(|| "no answer in time".into(), ToString::to_string)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_connection_that_breaks_is_made_anew_at_once_and_the_next_ones_after_pauses() {
        let now = Moment::now();
        let mut trouble = Trouble::none(now);
        assert_eq!(trouble.dial_at(), now);
        let ms = Duration::from_millis;
        for round in 0..2 {
            let now = now + ms(10_000) * round;
            trouble.strike(Fault::timed_out(), now);
            assert_eq!(trouble.dial_at(), now);
            for shortest in [20, 40, 80] {
                trouble.strike(Fault::timed_out(), now);
                let pause = trouble.dial_at() - now;
                assert!(
                    pause >= ms(shortest) && pause <= ms(2 * shortest),
                    "{pause:?}"
                );
            }
            // Until a statement succeeds.
            trouble.calm();
        }
    }

    #[test]
    fn the_last_failure_is_told_until_a_statement_succeeds() {
        let mut trouble = Trouble::none(Moment::now());
        let none = trouble.detail();
        trouble.refused(Fault::transaction_over());
        let refused = trouble.detail();
        assert!(refused.contains("no transaction"), "{refused}");
        trouble.strike(Fault::timed_out(), Moment::now());
        let broken = trouble.detail();
        assert!(broken.contains("in time"), "{broken}");
        trouble.refused(Fault::transaction_over());
        assert_eq!(trouble.detail(), refused);
        trouble.calm();
        assert_eq!(trouble.detail(), none);
    }

    #[test]
    fn a_server_that_takes_no_writes_is_told_from_one_that_is_out_of_reach() {
        let error = |fault: Option<Fault>| {
            let mut trouble = Trouble::none(Moment::now());
            if let Some(fault) = fault {
                trouble.refused(fault);
            }
            trouble.error("acquire", "here")
        };
        let read_only = error(Some(Fault::said(FaultKind::ReadOnly, "a standby")));
        assert!(matches!(read_only, Error::ReadOnly { .. }), "{read_only:?}");
        for fault in [
            None,
            Some(Fault::timed_out()),
            Some(Fault::said(FaultKind::LoginRefused, "who are you?")),
        ] {
            let unreachable = error(fault);
            let as_expected = matches!(unreachable, Error::Unreachable { .. });
            assert!(as_expected, "{unreachable:?}");
        }
    }
}
