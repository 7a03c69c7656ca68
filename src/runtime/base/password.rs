//! Passwords that the application gives for each new connection. Its code runs on a thread of its own, so that it
//! delays no renewal.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use super::threads::{begin, own_runtime};
use crate::model::{Error, FaultKind};
use crate::store::driver::origin::Password;
use crate::store::verbs::fault::Fault;

/// The application's closure. Its error is for people to read.
#[derive(Clone)]
pub(crate) struct AskPassword(Arc<dyn Fn() -> PasswordFuture + Send + Sync>);

type PasswordFuture = Pin<Box<dyn Future<Output = Result<String, String>> + Send>>;

/// Where an answer goes. It is closed when the attempt to connect has run out of time.
type Question = oneshot::Sender<Result<String, Fault>>;

impl AskPassword {
    pub(crate) fn new<F, E>(ask: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<String, E>> + Send + 'static,
        E: fmt::Display,
    {
        Self(Arc::new(move || {
            let answer = ask();
            Box::pin(async move { answer.await.map_err(|error| error.to_string()) })
        }))
    }

    /// Starts the thread. It ends with the last copy of the result.
    pub(crate) fn on_own_thread(self, target: &str) -> Result<Password, Error> {
        let (questions, mut queue) = mpsc::unbounded_channel::<Question>();
        begin("rowlock-password", target, move || {
            let answers = async move {
                while let Some(question) = queue.recv().await {
                    tokio::spawn(self.clone().answer(question));
                }
            };
            own_runtime()?.block_on(answers);
            Ok(())
        })?;
        Ok(Arc::new(move || {
            let (question, answer) = oneshot::channel();
            let _ = questions.send(question);
            Box::pin(async move {
                answer
                    .await
                    .unwrap_or_else(|_| Err(none("the closure panicked")))
            })
        }))
    }

    async fn answer(self, mut question: Question) {
        let ask = async { (self.0)().await };
        tokio::select! {
            answer = ask => {
                let _ = question.send(answer.map_err(|error| none(&error)));
            }
            () = question.closed() => {}
        }
    }
}

/// Without the password no connection can be made. Another attempt may have it.
fn none(why: &str) -> Fault {
    let what = format!("`Builder::password` has given no password: {why}");
    Fault::said(FaultKind::Disconnected, what)
}

impl fmt::Debug for AskPassword {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AskPassword")
    }
}
