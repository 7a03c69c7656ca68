//! Every verb of rowlock, in short calls whose results are checked.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use rowlock::{Error, Rowlock};
use rowlock_test::{App, Db, patience};

use crate::{alone, in_tx, said};

pub(crate) const TTL: Duration = Duration::from_secs(30);

/// What the verbs are called on.
#[derive(Debug)]
pub(crate) struct Shop {
    pub(crate) db: Db,
    /// The pool of the application whose transactions are used.
    pub(crate) app: App,
    pub(crate) one: Rowlock,
    pub(crate) two: Rowlock,
}

type Step = (
    &'static str,
    fn(&Shop) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>,
);

macro_rules! steps {
    ($($room:ident: $($step:ident)*;)*) => {
        const STEPS: &[Step] = &[$($((stringify!($step), |shop| Box::pin($room::$step(shop)))),*),*];
    };
}

steps! {
    alone: locks renewals batches queue many_names readers_and_writers semaphores lists sessions holds deadlocks jobs keys steps quarantine pauses;
    in_tx: transactions many_names_in_a_transaction pins versions effects_once outcomes_in_a_transaction messages form_tokens stripes;
    alone: cleaning;
}

/// Calls all verbs on the database. Returns what did not go as it should: the step, and what it said.
pub(crate) async fn exercise(db: Db, app: App) -> (Db, Vec<String>) {
    let one = Rowlock::connect(&db.url).await;
    let two = Rowlock::connect(&db.url).await;
    exercise_by(db, app, one, two).await
}

/// The same by these two clients.
pub(crate) async fn exercise_by(
    db: Db,
    app: App,
    one: Result<Rowlock, Error>,
    two: Result<Rowlock, Error>,
) -> (Db, Vec<String>) {
    let (one, two) = match (one, two) {
        (Ok(one), Ok(two)) => (one, two),
        (Err(error), _) | (_, Err(error)) => return (db, vec![format!("connect: {error}")]),
    };
    let client = two.clone();
    let shop = Arc::new(Shop { db, app, one, two });
    let mut wrong = Vec::new();
    for (name, step) in STEPS {
        let shop = Arc::clone(&shop);
        let done = tokio::spawn(async move {
            let limited = tokio::time::timeout(patience() / 4, step(&shop));
            limited.await.expect("it ends");
        });
        if let Err(panic) = done.await {
            wrong.push(format!("{name}: {}", said(panic)));
            // The next steps need none.
            let _ = client.admin().end_quarantine().await;
        }
    }
    let shop = Arc::into_inner(shop).expect("all steps have ended");
    shop.one.shutdown(patience()).await;
    shop.two.shutdown(patience()).await;
    shop.app.close().await;
    (shop.db, wrong)
}
