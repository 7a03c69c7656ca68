//! Exchanges of records: ends of attempts and claims in one call.

use super::*;
use crate::model::{Fingerprint, Outcome, RecordKey};
use crate::store::verbs::record::{
    ANY_ATTEMPT, ClaimOutcome, ClaimParams, FinishOutcome, FinishParams, RecordEnd,
};

fn key(name: &str) -> RecordKey {
    RecordKey::new("a'\\;", name).unwrap()
}

pub(crate) fn claim(name: &str) -> ClaimParams {
    ClaimParams {
        key: key(name),
        attempt_id: Uuid::new_v4(),
        holder: "it's ?".into(),
        fingerprint: Fingerprint::of("request"),
        lease: TTL,
        max_attempts: 5,
        database: Uuid::nil(),
        retain: TTL,
        remember: TTL,
        remember_begun: TTL,
        seen: None,
    }
}

fn done(params: &ClaimParams, bytes: usize) -> FinishParams {
    FinishParams {
        key: params.key.clone(),
        attempt_id: params.attempt_id,
        attempt: ANY_ATTEMPT,
        end: RecordEnd::Done {
            outcome: Outcome::new("text/plain", vec![b';'; bytes]).unwrap(),
            retain: TTL,
            remember: TTL,
        },
    }
}

fn freed(params: &ClaimParams) -> FinishParams {
    FinishParams {
        end: RecordEnd::Free {
            bound: false,
            pardon: 1,
            remember: TTL,
            remember_begun: TTL,
            step_is_open: false,
        },
        ..done(params, 0)
    }
}

impl<P: Place> Client<P> {
    /// Attempts that run.
    async fn begin(&mut self, names: &[&str]) -> Vec<ClaimParams> {
        let all = names.iter().map(|name| claim(name)).collect();
        self.begin_all(all).await
    }

    async fn begin_all(&mut self, all: Vec<ClaimParams>) -> Vec<ClaimParams> {
        let claimed = self.conn.record_claim(&all).await.unwrap();
        assert!(claimed.iter().all(is_mine), "{claimed:?}");
        all
    }

    /// The number of the attempt in the record of a key.
    async fn attempt(&mut self, name: &str) -> i64 {
        let row = self.conn.record_read_one(&key(name), 0).await.unwrap();
        row.expect("a record").attempt
    }
}

fn is_mine(claimed: &ClaimOutcome) -> bool {
    matches!(claimed, ClaimOutcome::Mine { .. })
}

/// Each key gets what it would get alone, whatever the others get.
pub(crate) async fn an_exchange_of_records_answers_each_key_as_alone<P: Place>(place: &P) {
    let mut client = Client::new(place).await;
    // No TLS record is full; nearly one; several.
    for (round, large) in [0, 6_000, 60_000].into_iter().enumerate() {
        let old = ["done", "freed", "late", "again"].map(|name| format!("{name}{round}"));
        let fresh = ["x", "y", "z"].map(|name| format!("{name}{round}"));
        let running = client.begin(&old.each_ref().map(String::as_str)).await;
        let late = FinishParams {
            attempt_id: Uuid::new_v4(),
            ..done(&running[2], 1)
        };
        let freed_one = client.conn.record_finish(&[freed(&running[3])]).await;
        assert_eq!(freed_one.unwrap(), [FinishOutcome::Ended]);
        let ends = [done(&running[0], large), freed(&running[1]), late];
        let again = ClaimParams {
            seen: Some(client.attempt(&old[3]).await),
            ..claim(&old[3])
        };
        let plain = [claim(&fresh[0]), claim(&fresh[1])];
        let (ended, claimed) = client.conn.record_exchange(&ends, &plain).await.unwrap();
        let all = [
            FinishOutcome::Ended,
            FinishOutcome::Ended,
            FinishOutcome::Superseded,
        ];
        assert_eq!(ended, all);
        for (params, claimed) in plain.iter().zip(&claimed) {
            let ClaimOutcome::Mine { attempt } = *claimed else {
                panic!("{claimed:?}");
            };
            let row = client.conn.record_read_one(&params.key, 0).await.unwrap();
            let row = row.expect("a record");
            assert!(row.runs_for(params.attempt_id), "{row:?}");
            assert_eq!(row.attempt, attempt);
        }
        let row = client
            .conn
            .record_read_one(&key(&old[0]), large)
            .await
            .unwrap();
        let RecordEnd::Done { outcome, .. } = &ends[0].end else {
            panic!("it has an outcome");
        };
        assert!(row.expect("a record").has(outcome));

        // One key whose record was seen, one that has a record by now, one without a record.
        let mixed = [again, claim(&fresh[0]), claim(&fresh[2])];
        let (ended, claimed) = client.conn.record_exchange(&ends, &mixed).await.unwrap();
        assert_eq!(ended, all, "a second sending finds the first");
        assert!(is_mine(&claimed[0]) && is_mine(&claimed[2]), "{claimed:?}");
        assert_eq!(claimed[1], ClaimOutcome::Missed);
        // The only claim has seen a record, and was sent before.
        let rest = [done(&running[2], 2)];
        let (ended, claimed) = client
            .conn
            .record_exchange(&rest, &mixed[..1])
            .await
            .unwrap();
        assert_eq!(ended, [FinishOutcome::Ended]);
        assert!(is_mine(&claimed[0]), "{claimed:?}");
    }
}

/// Ends that differ only in their keys and outcomes may share a statement.
pub(crate) async fn each_of_many_ends_keeps_its_own_outcome<P: Place>(place: &P) {
    let mut client = Client::new(place).await;
    let names = ["a", "b", "c", "d", "e"];
    let running = client.begin(&names).await;
    let mut ends: Vec<FinishParams> = running.iter().zip(1..).map(|(p, n)| done(p, n)).collect();
    let number = client.attempt("b").await;
    ends[1].attempt = number;
    ends[2].attempt_id = Uuid::new_v4();
    ends[3].attempt = number + 1_000_000;
    let ended = client.conn.record_finish(&ends).await.unwrap();
    let (mine, others) = (FinishOutcome::Ended, FinishOutcome::Superseded);
    assert_eq!(ended, [mine, mine, others, others, mine]);
    for (place, name) in names.into_iter().enumerate() {
        let row = client.conn.record_read_one(&key(name), 10).await.unwrap();
        let has_it = row.unwrap().has(ends[place].end.outcome().unwrap());
        assert_eq!(has_it, ended[place] == mine, "{name}");
    }
}

/// In a quarantine ends are kept, and claims are refused.
pub(crate) async fn in_a_quarantine_attempts_end_and_none_begins<P: Place>(place: &P) {
    let mut client = Client::new(place).await;
    let running = client.begin(&["a", "c"]).await;
    let old = client.conn.record_finish(&[freed(&running[1])]).await;
    assert_eq!(old.unwrap(), [FinishOutcome::Ended]);
    let again = ClaimParams {
        seen: Some(client.attempt("c").await),
        ..claim("c")
    };
    client.conn.quarantine_begin(TTL, TTL).await.unwrap();
    let claims = [claim("b"), again];
    let ends = [done(&running[0], 1)];
    let (ended, claimed) = client.conn.record_exchange(&ends, &claims).await.unwrap();
    assert_eq!(ended, [FinishOutcome::Ended]);
    assert_eq!(claimed, [ClaimOutcome::Locked, ClaimOutcome::Locked]);
    let row = client.conn.record_read_one(&key("b"), 0).await.unwrap();
    assert!(row.is_none(), "{row:?}");
}

/// One record that another transaction has changed keeps back no other. (SQLite: the whole file is locked.)
pub(crate) async fn an_exchange_of_records_waits_for_no_transaction<P: Place>(place: &P) {
    let mut client = Client::new(place).await;
    let mut other = Client::new(place).await;
    let mut all = ["a", "b", "c", "e"].map(claim).to_vec();
    for params in &mut all[1..] {
        params.max_attempts = 6;
    }
    let running = client.begin_all(all).await;
    let old = client.conn.record_finish(&[freed(&running[2])]).await;
    assert_eq!(old.unwrap(), [FinishOutcome::Ended]);
    let again = ClaimParams {
        seen: Some(client.attempt("c").await),
        ..claim("c")
    };
    other.run("BEGIN").await;
    let lock = "UPDATE rowlock_idempotency SET max_attempts = 7 WHERE max_attempts = 6";
    other.run(lock).await;
    let ends = [done(&running[0], 1), done(&running[1], 1)];
    let claims = [again, claim("d"), claim("e")];
    match client.conn.record_exchange(&ends, &claims).await {
        Err(fault) if P::LOCKS_ALL => assert_eq!(fault.kind, FaultKind::LockTimeout),
        Err(fault) => panic!("{fault:?}"),
        Ok((ended, claimed)) => {
            assert_eq!(ended, [FinishOutcome::Ended, FinishOutcome::Locked]);
            assert_eq!(claimed[0], ClaimOutcome::Locked);
            assert!(is_mine(&claimed[1]), "{claimed:?}");
            assert_eq!(claimed[2], ClaimOutcome::Missed);
        }
    }
    other.run("ROLLBACK").await;
    let (ended, claimed) = client.conn.record_exchange(&ends, &claims).await.unwrap();
    assert_eq!(ended, [FinishOutcome::Ended, FinishOutcome::Ended]);
    assert!(claimed[..2].iter().all(is_mine), "{claimed:?}");
    // Nothing is left open: another connection can change it.
    let all = other
        .conn
        .record_read(&[key("a"), key("d")], 1)
        .await
        .unwrap();
    assert!(all.iter().all(Option::is_some));
    other
        .run("UPDATE rowlock_idempotency SET max_attempts = 7")
        .await;
}

/// It is one transaction: a claim that no column takes keeps back the end.
pub(crate) async fn an_exchange_of_records_that_fails_changes_nothing<P: Place>(place: &P) {
    let mut client = Client::new(place).await;
    let running = client.begin(&["a"]).await;
    let too_long = ClaimParams {
        lease: Duration::MAX,
        ..claim("b")
    };
    let ends = [done(&running[0], 1)];
    let failed = client.conn.record_exchange(&ends, &[too_long]).await;
    failed.unwrap_err();
    let row = client.conn.record_read_one(&key("a"), 0).await.unwrap();
    assert!(row.expect("a record").runs_for(running[0].attempt_id));
    let (ended, claimed) = client
        .conn
        .record_exchange(&ends, &[claim("b")])
        .await
        .unwrap();
    assert_eq!(ended, [FinishOutcome::Ended]);
    assert!(is_mine(&claimed[0]), "{claimed:?}");
}

/// Where an exchange is several transactions, what has happened when one of them failed is in doubt.
pub(crate) async fn an_exchange_of_records_of_which_a_part_has_happened_is_in_doubt<P: Place>(
    place: &P,
) {
    let mut client = Client::new(place).await;
    let running = client.begin(&["a", "c"]).await;
    let old = client.conn.record_finish(&[freed(&running[1])]).await;
    assert_eq!(old.unwrap(), [FinishOutcome::Ended]);
    let too_long = ClaimParams {
        seen: Some(client.attempt("c").await),
        lease: Duration::MAX,
        ..claim("c")
    };
    let ends = [done(&running[0], 1)];
    for claims in [&[claim("b"), too_long.clone()][..], &[too_long]] {
        let fault = client
            .conn
            .record_exchange(&ends, claims)
            .await
            .unwrap_err();
        let row = client.conn.record_read_one(&key("a"), 0).await.unwrap();
        let runs = row.expect("a record").runs_for(running[0].attempt_id);
        assert_eq!(fault.kind == FaultKind::Disconnected, !runs, "{fault}");
    }
}
