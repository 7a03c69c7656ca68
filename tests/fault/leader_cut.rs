//! A leader that cannot reach the database: its work is dropped by its deadline, another candidate leads, and it
//! campaigns again as soon as it can.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rowlock::{Engine, Error, Rowlock};
use rowlock_recipes::leader::{Election, Leadership};
use rowlock_test::{Db, Mode, connected, loss, queue_is, through_proxy};
use tokio::sync::mpsc;

const NAME: &str = "leader";
/// How long the leader that is cut off goes on.
const TTL: Duration = Duration::from_secs(2);
/// The other one leads until it resigns.
const LONG: Duration = Duration::from_mins(30);

/// Tells when the work is dropped.
struct Dropped(mpsc::UnboundedSender<Instant>);

impl Drop for Dropped {
    fn drop(&mut self) {
        let _ = self.0.send(Instant::now());
    }
}

pub(crate) async fn cut_off(engine: Engine) {
    let db = Db::new(engine).await;
    let (proxy, url) = through_proxy(&db).await;
    let builder = Rowlock::builder().operation_timeout(Duration::from_secs(1));
    let (far, near) = (connected(&builder, &url).await, db.rowlock().await);
    for mode in [Mode::Silent, Mode::Closed] {
        let (begin, mut begun) = mpsc::unbounded_channel();
        let (end, mut ended) = mpsc::unbounded_channel();
        let election = Election::new(&far, NAME).ttl(TTL).candidate("far");
        let leading = tokio::spawn(async move {
            let work = |leadership: Leadership| {
                let leadership = Arc::new(leadership);
                begin.send(Arc::clone(&leadership)).unwrap();
                let dropped = Dropped(end.clone());
                async move {
                    let _dropped = (dropped, leadership);
                    std::future::pending::<Result<ControlFlow<()>, Error>>().await
                }
            };
            election.lead(work).await
        });
        let first = begun.recv().await.unwrap();
        let election = Election::new(&near, NAME).ttl(LONG).candidate("near");
        let next = tokio::spawn(async move { election.campaign().await });
        queue_is(&near, NAME, &["near"]).await;
        proxy.set(mode);
        let cut = Instant::now();
        let next = next.await.unwrap().unwrap();
        let failover = cut.elapsed();
        assert!(!first.is_leading(), "two lead");
        assert!(next.term() > first.term());
        let stopped = ended.recv().await.expect("the work is dropped");
        println!(
            "leader_cut_off {engine} {mode:?}: the work ended {} ms after the cut, and another candidate led after {} ms",
            (stopped - cut).as_millis(),
            failover.as_millis()
        );
        // The database is back: it campaigns again, and waits for its turn.
        proxy.set(Mode::Pass);
        queue_is(&near, NAME, &["far"]).await;
        assert!(begun.try_recv().is_err(), "two lead");
        let _ = loss(next.resign().await);
        assert!(begun.recv().await.unwrap().term() > next.term());
        leading.abort();
        assert!(leading.await.unwrap_err().is_cancelled());
        far.flush().await;
    }
    db.remove().await;
}
