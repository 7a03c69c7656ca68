//! Exchanges on both servers.

use super::*;
use crate::model::{FaultKind, RecordKey};
use crate::store::verbs::lease::{LeaseStore, TakeOutcome, TakeParams};
use crate::store::verbs::record::RecordStore;
use crate::store::verbs::release::{FreeOutcome, ReleaseParams};

async fn on_both(test: impl AsyncFn(Database)) {
    for variable in ["ROWLOCK_TEST_MYSQL_URL", "ROWLOCK_TEST_MARIADB_URL"] {
        test(Database::new(variable).await).await;
    }
}

fn take(name: &str) -> TakeParams {
    TakeParams {
        name: named(name),
        grant_id: Uuid::new_v4(),
        ttl: TTL,
        holder: "taker".into(),
        session: None,
    }
}

/// It tells a transaction that is in the way from a statement that cannot run.
#[tokio::test]
async fn whether_a_key_is_claimed_is_not_known_without_the_table() {
    on_both(async |place| {
        let mut client = Client::new(&place).await;
        client.run("RENAME TABLE rowlock_idempotency TO gone").await;
        let asked = client
            .conn
            .record_is_claimed(&RecordKey::new("s", "k").unwrap())
            .await;
        assert_eq!(asked.unwrap_err().kind, FaultKind::NoSuchTable);
    })
    .await;
}

async fn held(client: &mut Client<Database>, names: &[&str]) -> Vec<ReleaseParams> {
    let mut releases = Vec::new();
    for name in names {
        let held = client.hold(name).await;
        releases.push(ReleaseParams {
            name: held.params.name,
            grant_id: held.params.grant_id,
            fence: held.fence,
            was_queued: false,
        });
    }
    releases
}

/// No statement looks at other rows than it has to: it would wait for the locked ones. (Most rows of this small table
/// are asked for, so that reading the whole table would be cheap.) The transaction that has them locked goes on until
/// the exchanges are done.
#[tokio::test]
async fn a_locked_row_holds_up_no_other_row() {
    on_both(async |place| {
        let mut client = Client::new(&place).await;
        let mut other = Client::new(&place).await;
        let free = held(&mut client, &["d", "e", "f", "g"]).await;
        let freed = client.conn.lease_release(&free).await.unwrap();
        assert_eq!(freed, vec![FreeOutcome::Released; 4]);
        let releases = held(&mut client, &["a", "b", "c", "h"]).await;
        let takes = ["d", "e", "f", "g"].map(take);
        other
            .run(
                "START TRANSACTION;
                 SELECT * FROM rowlock_lock WHERE name = 'b' FOR UPDATE;
                 SELECT * FROM rowlock_lock WHERE name = 'e' FOR UPDATE",
            )
            .await;
        let (some, others) = (
            [releases[0].clone(), releases[2].clone()],
            [takes[0].clone(), takes[2].clone()],
        );
        let (freed, taken) = client.conn.lease_exchange(&some, &others).await.unwrap();
        assert_eq!(freed, vec![FreeOutcome::Released; 2]);
        assert!(
            matches!(
                taken[..],
                [TakeOutcome::Granted { .. }, TakeOutcome::Granted { .. }]
            ),
            "{taken:?}"
        );
        let exchange = client.conn.lease_exchange(&releases[1..], &takes[1..]);
        let (freed, taken) = exchange.await.unwrap();
        assert_eq!(
            freed,
            [
                FreeOutcome::Locked,
                FreeOutcome::WasFree,
                FreeOutcome::Released
            ]
        );
        assert!(
            matches!(
                &taken[..],
                [
                    TakeOutcome::Busy(None),
                    TakeOutcome::Granted { .. },
                    TakeOutcome::Granted { .. }
                ]
            ),
            "{taken:?}"
        );

        other.run("COMMIT").await;
        let exchange = client.conn.lease_exchange(&releases[1..2], &takes[1..2]);
        let (freed, taken) = exchange.await.unwrap();
        assert_eq!(freed, [FreeOutcome::Released]);
        assert!(
            matches!(taken[..], [TakeOutcome::Granted { .. }]),
            "{taken:?}"
        );
    })
    .await;
}

/// All of it is one transaction: what was freed before the error is held again.
#[tokio::test]
async fn an_exchange_is_one_transaction() {
    on_both(async |place| {
        let mut client = Client::new(&place).await;
        let mut other = Client::new(&place).await;
        let releases = held(&mut client, &["a", "b"]).await;
        other
            .run("INSERT INTO rowlock_lock (name, fence) VALUES ('c', 4611686018427387903), ('d', 1)")
            .await;
        let takes = ["c", "d"].map(take);
        let failed = client.conn.lease_exchange(&releases, &takes).await;
        failed.unwrap_err();
        for release in &releases {
            let row = other.row(release.name.as_str()).await;
            assert!(row.is_of(release.grant_id), "{row:?}");
        }
        let open = "SELECT COUNT(*) FROM information_schema.innodb_trx
                    WHERE trx_mysql_thread_id = CONNECTION_ID()";
        assert_eq!(Database::numbers(&mut client.conn, open).await, [0]);
        let (freed, taken) = client
            .conn
            .lease_exchange(&releases, &takes[1..])
            .await
            .unwrap();
        assert_eq!(freed, vec![FreeOutcome::Released; 2]);
        assert!(matches!(taken[..], [TakeOutcome::Granted { .. }]), "{taken:?}");
    })
    .await;
}

/// A batch of releases, and a batch of takes: each ask has its own outcome, whatever the others have.
#[tokio::test]
async fn a_batch_of_one_kind_tells_of_each_ask() {
    on_both(async |place| {
        let mut client = Client::new(&place).await;
        let mut other = Client::new(&place).await;
        let names = ["a", "b", "c", "d"];
        let mut grants = Vec::new();
        let releases = held(&mut client, &names).await;
        let freed = client.conn.lease_release(&releases).await.unwrap();
        assert_eq!(freed, vec![FreeOutcome::Released; 4]);
        let again = client.conn.lease_release(&releases).await.unwrap();
        assert_eq!(again, vec![FreeOutcome::WasFree; 4]);

        other
            .run("START TRANSACTION; SELECT * FROM rowlock_lock WHERE name = 'b' FOR UPDATE")
            .await;
        let takes = names.map(take);
        let taken = client.conn.lease_take_once(&takes).await.unwrap();
        for (params, taken) in takes.iter().zip(taken) {
            match taken {
                TakeOutcome::Granted { fence } => grants.push(ReleaseParams {
                    name: params.name.clone(),
                    grant_id: params.grant_id,
                    fence,
                    was_queued: false,
                }),
                other => assert_eq!(params.name, named("b"), "{other:?}"),
            }
        }
        other.run("COMMIT").await;
        for (release, name) in grants.iter().zip(["a", "c", "d"]) {
            let row = client.row(name).await;
            assert!(row.is_of(release.grant_id) && row.fence == release.fence);
        }
        let taken = client.conn.lease_take_once(&names.map(take)).await;
        let is_new = |taken: &TakeOutcome| matches!(taken, TakeOutcome::Granted { .. });
        let new: Vec<bool> = taken.unwrap().iter().map(is_new).collect();
        assert_eq!(new, [false, true, false, false]);

        other
            .run(
                "UPDATE rowlock_lock SET expires_at = SYSDATE(6) - INTERVAL 1 MINUTE WHERE name = 'c';
                 START TRANSACTION; SELECT * FROM rowlock_lock WHERE name = 'd' FOR UPDATE",
            )
            .await;
        let freed = client.conn.lease_release(&grants[1..]).await.unwrap();
        assert_eq!(freed, [FreeOutcome::Expired, FreeOutcome::Locked]);
        other.run("COMMIT").await;
        let freed = client.conn.lease_release(&grants).await.unwrap();
        assert_eq!(freed, [FreeOutcome::Released, FreeOutcome::Expired, FreeOutcome::Released]);
    })
    .await;
}
