//! The tasks, each by itself, on a real SQLite file.

use sqlx::{Connection, SqliteConnection};

use super::schedule::Chunk;
use super::send::part;
use super::*;
use crate::model::{ClockError, FaultKind, Loss, Name};
use crate::runtime::held::grant::GrantSubject;
use crate::store::sqlite::Sqlite;
use crate::store::verbs::Store;
use crate::store::verbs::fault::Fault;
use crate::store::verbs::lease::{LeaseStore, TakeOutcome, TakeParams};

/// A test that waits longer than this has failed.
const LONG: Duration = Duration::from_secs(20);

struct House {
    dir: tempfile::TempDir,
    shared: Arc<RenewShared>,
}

impl House {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let house = Self {
            dir,
            shared: Arc::default(),
        };
        let client = crate::client::Rowlock::connect(&house.url()).await.unwrap();
        // A client that was dropped closes the file some time later.
        let left = client.shutdown(LONG).await;
        assert!(left.is_empty(), "{left:?}");
        house
    }

    fn url(&self) -> String {
        let file = self.dir.path().join("a.db");
        format!("sqlite:{}?mode=rwc", file.display())
    }

    fn link(&self) -> Link {
        Link::new(
            Sqlite::from_url(&self.url()).unwrap(),
            LONG,
            &Arc::default(),
        )
    }

    /// A lease of this TTL that is due for renewal at once.
    async fn lease(&self, name: &str, ttl: Duration) -> Arc<Grant> {
        let params = TakeParams {
            name: Name::new(name).unwrap(),
            grant_id: Uuid::new_v4(),
            ttl,
            holder: "test".into(),
            session: None,
        };
        let mut conn = SqliteConnection::connect(&self.url()).await.unwrap();
        let taken = conn
            .lease_take(std::slice::from_ref(&params))
            .await
            .unwrap();
        let [TakeOutcome::Granted { fence }] = taken[..] else {
            panic!("{taken:?}")
        };
        let grant = grant(
            params.name,
            params.grant_id,
            fence,
            ttl,
            Moment::now() + ttl / 2,
        );
        self.keep(Renewable::Lease(Arc::clone(&grant)));
        grant
    }

    fn keep(&self, kept: Renewable) {
        self.shared.state.lock().schedule.keep(Moment::now(), kept);
    }

    /// The due leases of all that are held.
    fn chunk(&self) -> Chunk {
        self.shared.state.lock().schedule.chunk(Moment::now())
    }
}

fn grant<K: GrantSubject + Clone>(
    name: K,
    id: Uuid,
    fence: i64,
    ttl: Duration,
    deadline: Moment,
) -> Arc<Grant<K>> {
    let exact = ClockError::new(Duration::ZERO);
    let grant = Grant::new(name, id, fence, ttl, exact, None, deadline);
    assert!(grant.add_guard());
    Arc::new(grant)
}

#[tokio::test]
async fn the_announcer_tells_what_is_lost_before_it_ends() {
    let house = House {
        dir: tempfile::tempdir().unwrap(),
        shared: Arc::default(),
    };
    let past = Moment::now();
    let name = Name::new("a").unwrap();
    let lost = grant(name, Uuid::new_v4(), 1, LONG, past);
    house.keep(Renewable::Lease(Arc::clone(&lost)));
    house.shared.state.lock().closed = true;
    announce(&house.shared, "here").await;
    assert_eq!(house.shared.state.lock().schedule.len(), 0);
    assert_eq!(lost.loss(), Some(Loss::Expired));
}

#[tokio::test]
async fn the_connection_is_made_before_the_first_renewal_is_due() {
    let house = House {
        dir: tempfile::tempdir().unwrap(),
        shared: Arc::default(),
    };
    let ttl = Duration::from_hours(1);
    let name = Name::new("a").unwrap();
    let fresh = grant(name, Uuid::new_v4(), 1, ttl, Moment::now() + ttl * 5 / 6);
    house.keep(Renewable::Lease(fresh));
    let file = house.dir.path().join("a.db");
    let made = async {
        while !file.exists() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    select! {
        () = renew(house.link(), &house.shared, "here") => panic!("it has ended"),
        made = tokio::time::timeout(LONG, made) => made.expect("nothing dials"),
    }
}

#[tokio::test]
async fn a_login_under_way_at_the_end_leaves_no_log_beside_the_file() {
    for _ in 0..50 {
        let house = House::new().await;
        let ttl = Duration::from_hours(1);
        let name = Name::new("a").unwrap();
        let fresh = grant(name, Uuid::new_v4(), 1, ttl, Moment::now() + ttl * 5 / 6);
        house.keep(Renewable::Lease(fresh));
        let end = async {
            house.shared.state.lock().closed = true;
            house.shared.renew.notify_one();
        };
        tokio::join!(renew(house.link().urgent(), &house.shared, "here"), end);
        assert!(!house.dir.path().join("a.db-wal").exists());
    }
}

#[tokio::test]
async fn what_was_not_sent_because_the_connection_is_gone_is_due_again() {
    let house = House::new().await;
    let lease = house.lease("a", Duration::from_mins(5)).await;
    let Chunk { kept, bound } = house.chunk();
    assert_eq!(house.shared.state.lock().schedule.next(Moment::now()), None);
    let mut gone = house.link();
    let unsent = async |_: &mut dyn Store| unreachable!("there is no connection");
    part(&mut gone, &house.shared, kept, bound, unsent)
        .await
        .unwrap();
    let now = Moment::now();
    assert_eq!(house.shared.state.lock().schedule.next(now), Some(now));
    assert_eq!(house.chunk().kept[0].id(), lease.id);
}

#[tokio::test]
async fn a_statement_that_is_refused_at_once_is_not_slow_and_one_that_is_cut_off_is() {
    let bound = Duration::from_millis(20);
    for silent in [false, true] {
        let house = House::new().await;
        house.lease("a", Duration::from_mins(5)).await;
        let kept = house.chunk().kept;
        let mut link = house.link();
        link.connect().await.unwrap();
        let verb = async |_: &mut dyn Store| {
            if silent {
                std::future::pending::<()>().await;
            }
            Err(Fault::said(FaultKind::Other, "a damaged row"))
        };
        let failed = part(&mut link, &house.shared, kept, bound, verb).await;
        assert!(failed.is_err());
        assert_eq!(link.is_connected(), !silent);
        let needed = house.shared.state.lock().schedule.pace.needed();
        assert_eq!(needed >= bound * 2, silent, "{needed:?}");
    }
}

#[test]
fn an_attempt_is_kept_and_removed_as_a_lease_is() {
    let renewals = Renewals(Arc::default());
    let key = RecordKey::new("scope", "k").unwrap();
    let id = Uuid::new_v4();
    let attempt = grant(key, id, 1, LONG, Moment::now() + LONG);
    renewals.add_record(&attempt);
    assert_eq!(renewals.0.state.lock().schedule.len(), 1);
    renewals.remove(id);
    assert_eq!(renewals.0.state.lock().schedule.len(), 0);
}
