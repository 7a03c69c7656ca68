//! Holds back what a database answers, for tests of an application ([`crate::testing`]).

use tokio::sync::watch;

use crate::model::FaultKind;
use crate::store::verbs::fault::Fault;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum GateMode {
    #[default]
    Pass,
    /// Statements are sent, and their answers do not come.
    HeldBack,
    /// Connections are cut, and no new one is made. Answers that are held back are lost.
    Cut,
}

/// What all answers to a client pass through: the mode, and how often connections were cut. (Who waits may miss a
/// mode that was brief.)
#[derive(Debug, Default)]
pub(crate) struct Gate(watch::Sender<(GateMode, u64)>);

impl Gate {
    pub(crate) fn set(&self, answers: GateMode) {
        self.0.send_modify(|(mode, cuts)| {
            *mode = answers;
            *cuts += u64::from(answers == GateMode::Cut);
        });
    }

    /// Runs a call, and returns its answer when that may pass.
    pub(crate) async fn through<T>(
        &self,
        call: impl Future<Output = Result<T, Fault>>,
    ) -> Result<T, Fault> {
        let mut answers = self.0.subscribe();
        let (mode, before) = *answers.borrow();
        if mode == GateMode::Cut {
            return Err(cut());
        }
        let answer = call.await;
        let may_end = answers.wait_for(|(mode, _)| *mode != GateMode::HeldBack);
        match may_end.await {
            Ok(now) if now.1 > before => Err(cut()),
            _ => answer,
        }
    }
}

fn cut() -> Fault {
    Fault::said(FaultKind::Disconnected, "a test has cut the connection")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_cut_that_is_over_at_once_loses_what_was_held_back() {
        let gate = Gate::default();
        gate.set(GateMode::HeldBack);
        let mut held = std::pin::pin!(gate.through(async { Ok(()) }));
        assert!(futures_util::poll!(&mut held).is_pending());
        gate.set(GateMode::Cut);
        gate.set(GateMode::Pass);
        assert!(held.await.is_err());
        assert!(gate.through(async { Ok(()) }).await.is_ok());
    }
}
