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

/// What all answers to a client pass through.
#[derive(Debug)]
pub(crate) struct Gate(watch::Sender<GateMode>);

impl Default for Gate {
    fn default() -> Self {
        Self(watch::Sender::new(GateMode::Pass))
    }
}

impl Gate {
    pub(crate) fn set(&self, answers: GateMode) {
        self.0.send_replace(answers);
    }

    /// Runs a call, and returns its answer when that may pass.
    pub(crate) async fn through<T>(
        &self,
        call: impl Future<Output = Result<T, Fault>>,
    ) -> Result<T, Fault> {
        let mut answers = self.0.subscribe();
        if *answers.borrow() == GateMode::Cut {
            return Err(cut());
        }
        let answer = call.await;
        let may_end = answers.wait_for(|answers| *answers != GateMode::HeldBack);
        match may_end.await {
            Ok(answers) if *answers == GateMode::Cut => Err(cut()),
            _ => answer,
        }
    }
}

fn cut() -> Fault {
    Fault::said(FaultKind::Disconnected, "a test has cut the connection")
}
