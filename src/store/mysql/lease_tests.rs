//! The sizes of the statements for a batch.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::super::connect::MySql;
use super::super::exchange::exchange_text;
use super::super::lease_text::take_text;
use super::*;
use crate::store::driver::connector::Connector;
use crate::store::driver::request::RequestLimit;
use crate::store::verbs::lease::FOR_EVER;

/// The size of a TLS record, and of the protocol's header before a statement.
const RECORD: usize = 16 * 1024;
const HEADER: usize = 5;

/// As many asks as the limit admits.
fn batch<T>(limit: RequestLimit, name: &str, rest: usize, params: impl Fn(Name) -> T) -> Vec<T> {
    let name = Name::new(name).unwrap();
    let mut used = 0;
    let admits = |_: &usize| limit.admits(&mut used, name.as_bytes().len(), rest);
    let count = (0..1_000).take_while(admits).count();
    (0..count).map(|_| params(name.clone())).collect()
}

#[test]
fn a_batch_that_is_admitted_leaves_in_one_record() {
    let (grant_id, ttl) = (Uuid::max(), Duration::from_hours(24));
    for length in [1, 20, 255] {
        // With this letter a name is written in hexadecimal, which is longest.
        let name = "~".repeat(length);
        let renewals = batch(MySql::RENEWALS, &name, 0, |name| RenewParams {
            name,
            grant_id,
            ttl,
        });
        let renew = renew_text(&renewals);
        let holder: Arc<str> = "program 12345 on host".into();
        let takes = batch(MySql::REQUEST, &name, holder.len(), |name| TakeParams {
            name,
            grant_id,
            ttl,
            holder: Arc::clone(&holder),
            session: None,
        });
        let (take, read) = take_text(&takes);
        let rest = holder.len() + TakeParams::IN_SESSION;
        let in_session = batch(MySql::REQUEST, &name, rest, |name| TakeParams {
            name,
            grant_id,
            ttl: FOR_EVER,
            holder: Arc::clone(&holder),
            session: Some(Uuid::max()),
        });
        let (take_in_session, read_in_session) = take_text(&in_session);
        for size in [
            renew.len(),
            take.len() + read.len(),
            take_in_session.len() + read_in_session.len(),
        ] {
            // The size comes close to the limit, too.
            assert!((12_000..RECORD - HEADER).contains(&size), "{size}");
        }
    }
}

/// (Names with other letters are written in hexadecimal. A text of long ones may be longer, and is not sent then.)
#[test]
fn an_exchange_that_is_admitted_leaves_in_one_record() {
    let holder: Arc<str> = "program 12345 on host".into();
    for (name, least) in [("n".repeat(20), 9_000), ("é".repeat(10), 9_000)] {
        let pair = holder.len() + 66 + 4 * name.len();
        let names = batch(MySql::REQUEST, &name, pair, |name| name);
        let releases: Vec<ReleaseParams> = names
            .iter()
            .map(|name| ReleaseParams {
                name: name.clone(),
                grant_id: Uuid::max(),
                fence: i64::MAX,
                was_queued: false,
            })
            .collect();
        let takes: Vec<TakeParams> = names
            .iter()
            .map(|name| TakeParams {
                name: name.clone(),
                grant_id: Uuid::max(),
                ttl: FOR_EVER,
                holder: Arc::clone(&holder),
                session: Some(Uuid::max()),
            })
            .collect();
        let text = exchange_text(&releases.iter().collect::<Vec<_>>(), &takes);
        let size = text.len();
        assert!((least..RECORD - HEADER - 64).contains(&size), "{size}");
    }
}
