//! Lone names in a caller's transaction.

use super::{Client, Place, named};
use crate::model::FaultKind;
use crate::store::verbs::in_tx::{InTxStore, TxParams, TxTaken};
use crate::store::verbs::lock_row::{LockRowStore, RowAction};

/// A statement that only takes the lock of the file, on SQLite.
const WRITE: &str = "UPDATE rowlock_lock SET fence = fence WHERE 1 = 0";

fn ask(name: &str, version: Option<i64>, begun: bool) -> TxParams {
    TxParams {
        name: named(name),
        version,
        before: None,
        begun,
    }
}

impl<P: Place> Client<P> {
    async fn make(&mut self, name: &str) -> i64 {
        let made = self.conn.lock_row(&named(name), RowAction::Make).await;
        made.unwrap().unwrap().fence
    }

    async fn takes_in_tx(&mut self, params: TxParams) -> TxTaken {
        let told = self.conn.tx_take(&[params]).await.unwrap();
        assert!(told.database.is_some());
        told.found
    }
}

pub(crate) async fn a_transaction_is_granted_a_free_lock_under_the_next_fence(place: &impl Place) {
    let mut client = Client::new(place).await;
    let mut before = client.make("a").await;
    for (begun, versioned) in [(false, false), (true, false), (false, true), (true, true)] {
        client.run("BEGIN").await;
        client.run(WRITE).await;
        let seen = client.conn.tx_row(&named("a")).await.unwrap();
        assert!(seen.database.is_some());
        assert_eq!(seen.found.map(|row| row.fence), Some(before));
        let version = versioned.then_some(before);
        let taken = client.takes_in_tx(ask("a", version, begun)).await;
        let TxTaken::Granted { fences, .. } = taken else {
            panic!("{taken:?}");
        };
        client.run("COMMIT").await;
        let fence = client.row("a").await.fence;
        assert!(fence > before && fences == [fence], "{fences:?}");
        before = fence;
    }
    // The clock goes back.
    let far = before + 3_600_000_000;
    let ahead = format!("UPDATE rowlock_lock SET fence = {far}");
    client.run(&ahead).await;
    for begun in [false, true] {
        client.run("BEGIN").await;
        client.run(WRITE).await;
        let taken = client.takes_in_tx(ask("a", None, begun)).await;
        assert!(
            matches!(&taken, TxTaken::Granted { fences, .. } if fences[0] == far + 1),
            "{taken:?}"
        );
        client.run("ROLLBACK").await;
    }
}

pub(crate) async fn a_transaction_is_granted_no_lock_that_is_not_free(place: &impl Place) {
    let mut client = Client::new(place).await;
    client.make("many").await;
    client
        .run("UPDATE rowlock_lock SET fence = 7, capacity = 2")
        .await;
    let held = client.hold("held").await;
    let outdated = client.make("outdated").await;
    for begun in [false, true] {
        for (name, version) in [
            ("held", None),
            ("held", Some(held.fence)),
            ("many", None),
            ("outdated", Some(outdated - 1)),
            ("outdated", Some(outdated + 1)),
        ] {
            client.run("BEGIN").await;
            client.run(WRITE).await;
            let taken = client.takes_in_tx(ask(name, version, begun)).await;
            assert!(!matches!(taken, TxTaken::Granted { .. }), "{name}");
            client.run("COMMIT").await;
        }
        let row = client.row("held").await;
        assert!(row.is_of(held.params.grant_id) && row.fence == held.fence);
        assert_eq!(client.row("many").await.fence, 7);
        assert_eq!(client.row("outdated").await.fence, outdated);
    }
}

pub(crate) async fn a_transaction_that_is_over_is_told_so(place: &impl Place) {
    let mut client = Client::new(place).await;
    client.make("a").await;
    for begun in [false, true] {
        for name in ["a", "none"] {
            let told = client.conn.tx_take(&[ask(name, None, begun)]).await;
            let fault = told.expect_err("no transaction is open");
            assert_eq!(fault.kind, FaultKind::TransactionOver, "{fault}");
        }
        // Nor is one left open.
        client.run("BEGIN").await;
        client.run("ROLLBACK").await;
    }
}
