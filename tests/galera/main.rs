//! A cluster in which every server takes writes: three Galera nodes on this machine, started by `docker/servers.sh`.
//!
//! `ROWLOCK_TEST_GALERA_URLS`, three URLs with commas between them, replaces the nodes of our own.
#![allow(missing_docs, reason = "tests are named, not documented")]

mod aborts;
mod cluster;
mod galera;
mod gate;
mod permits;

use std::process::ExitCode;
use std::sync::Arc;

use libtest_mimic::{Arguments, Failed, Trial};
use rowlock_test::patience;

use cluster::{Cluster, Watched};

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    if arguments.list {
        return libtest_mimic::run(&arguments, trials(None)).exit_code();
    }
    let cluster = Arc::new(Cluster::start());
    libtest_mimic::run(&arguments, trials(Some(&cluster))).exit_code()
}

fn trials(cluster: Option<&Arc<Cluster>>) -> Vec<Trial> {
    let mut trials = galera::trials(cluster);
    trials.extend(permits::trials(cluster));
    trials.extend(aborts::trials(cluster));
    trials
}

fn trial<F: Future<Output = ()>>(
    name: &str,
    cluster: Option<&Arc<Cluster>>,
    body: impl FnOnce(Arc<Cluster>) -> F + Send + 'static,
) -> Trial {
    let cluster = cluster.cloned();
    Trial::test(name, move || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build();
        let cluster = cluster.expect("it is started for what runs");
        let _watched = Watched(Arc::clone(&cluster));
        runtime.unwrap().block_on(async {
            let test = body(cluster);
            // An event that never comes.
            let done = tokio::time::timeout(3 * patience(), test).await;
            done.expect("done within the patience of a test");
        });
        Ok::<(), Failed>(())
    })
}
