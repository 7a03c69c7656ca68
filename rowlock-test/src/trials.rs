//! Tests of programs without libtest's harness.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc;
use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use rowlock::Engine;

use crate::patience;

/// How many patiences a test has that starts servers and processes.
const PATIENCES: u32 = 5;

/// How long a test has that goes through a list.
const A_LIST: Duration = Duration::from_hours(12);

/// A test on one engine: `name::engine`.
pub fn trial<F: Future<Output = ()>>(
    name: &str,
    engine: Engine,
    body: impl FnOnce(Engine) -> F + Send + 'static,
) -> Trial {
    lone_trial(&format!("{name}::{engine}"), move || body(engine))
}

/// A test that goes through a list. Each item has a patience of its own.
pub fn list_trial<F: Future<Output = ()>>(
    name: &str,
    engine: Engine,
    body: impl FnOnce(Engine) -> F + Send + 'static,
) -> Trial {
    limited(&format!("{name}::{engine}"), A_LIST, move || body(engine))
}

/// A test on a runtime and a thread of its own. The thread has the test's name, so that databases and panics tell it.
pub fn lone_trial<F: Future<Output = ()>>(
    name: &str,
    body: impl FnOnce() -> F + Send + 'static,
) -> Trial {
    limited(name, PATIENCES * patience(), body)
}

fn limited<F: Future<Output = ()>>(
    name: &str,
    limit: Duration,
    body: impl FnOnce() -> F + Send + 'static,
) -> Trial {
    let thread = std::thread::Builder::new().name(name.to_owned());
    Trial::test(name, move || {
        let test = move || {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build();
            runtime.unwrap().block_on(async {
                // An event that never comes.
                let done = tokio::time::timeout(limit, body()).await;
                done.expect("done within the patience of a test");
            });
        };
        let (tell, told) = mpsc::channel();
        let test = thread.spawn(move || tell.send(catch_unwind(AssertUnwindSafe(test))));
        test.unwrap();
        // The runtime's limit cannot end a test that blocks the thread.
        let ended = told.recv_timeout(2 * limit);
        let ended = ended.map_err(|_| Failed::from("the test blocks its thread, for ever"))?;
        ended.unwrap_or_else(|panic| resume_unwind(panic));
        Ok(())
    })
}
