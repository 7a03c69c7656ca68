//! What operators list: page by page, in the order of the keys, however many rows there are.

use std::collections::BTreeSet;
use std::time::Duration;

use rowlock::{
    Error, Kind, NameFilter, NameInfo, NameState, Page, RecordFilter, RecordKey, RecordState,
    Rowlock,
};
use rowlock_test::{Db, begin_new, join, on_every_engine, outcome, take};
use uuid::Uuid;

const LONG: Duration = Duration::from_mins(10);

/// All pages of a filter.
async fn pages(rowlock: &Rowlock, filter: NameFilter) -> Vec<Page<NameInfo>> {
    let (mut pages, mut filter) = (Vec::new(), filter);
    loop {
        let page = rowlock.admin().names(&filter).await.unwrap();
        filter = filter.from(page.next.clone());
        pages.push(page);
        if pages.last().is_some_and(|page| page.next.is_none()) {
            return pages;
        }
    }
}

fn names(pages: &[Page<NameInfo>]) -> Vec<&str> {
    let infos = pages.iter().flat_map(|page| &page.items);
    infos.map(|info| info.name.as_str()).collect()
}

/// A name without what passes of the times of its holders.
fn steady(info: &NameInfo) -> NameInfo {
    let mut info = info.clone();
    for held in &mut info.holders {
        (held.expires_at, held.remaining) = (held.acquired_at, Duration::ZERO);
    }
    info
}

/// Free rows of names, as a release leaves them. (Their fences are of the year 2033: the cleaner removes old ones.)
async fn rows(db: &Db, names: impl Iterator<Item = String>) {
    let rows: Vec<String> = names
        .map(|name| format!("({}, 2000000000000000)", db.bytes(&name)))
        .collect();
    for rows in rows.chunks(500) {
        db.execute(&format!(
            "INSERT INTO rowlock_lock (name, fence) VALUES {}",
            rows.join(", ")
        ))
        .await;
    }
}

on_every_engine! {
    async fn names_are_listed_with_their_holders_and_their_waiters(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let held = take(&one, "a:held", LONG).await;
        let awaited = take(&one, "a:awaited", LONG).await;
        let waiting = [join(&two, "a:awaited", "first").await, join(&two, "a:awaited", "second").await];
        take(&one, "a:free", LONG).await.release().await.unwrap();
        let permits = [one.semaphore("a:s", 3).acquire().await.unwrap(), two.semaphore("a:s", 3).weight(2).acquire().await.unwrap()];
        let reader = one.rw_lock("a:rw").read().await.unwrap();
        let other = take(&one, "b", LONG).await;

        let of_a = || NameFilter::new().prefix("a:");
        let all = pages(&two, of_a()).await;
        assert_eq!(names(&all), ["a:awaited", "a:free", "a:held", "a:rw", "a:s"]);
        let [info, free, _, rw, s] = &all[0].items[..] else { panic!("{all:?}") };
        assert_eq!((info.kind, info.waiters, info.holders.len()), (Kind::Lock, 2, 1));
        assert_eq!((info.fence, info.holders[0].fence), (awaited.fence(), awaited.fence()));
        assert_eq!((free.waiters, free.holders.len()), (0, 0));
        assert_eq!((rw.kind, rw.holders.len(), s.kind.to_string(), s.holders.len()), (Kind::ReadWrite, 1, "a semaphore of 3".into(), 2));
        assert_eq!(two.admin().name("a:awaited").await.unwrap().as_ref().map(steady), Some(steady(info)));
        assert_eq!(two.admin().name("a:s").await.unwrap().as_ref().map(steady), Some(steady(s)));
        assert_eq!(two.admin().name("a:free").await.unwrap().as_ref(), Some(free));
        assert_eq!(two.admin().name("a:").await.unwrap(), None);
        let in_state = async |state| {
            let found = pages(&two, of_a().state(state)).await;
            names(&found).join(" ")
        };
        assert_eq!(in_state(NameState::InUse).await, "a:awaited a:held a:rw a:s");
        assert_eq!(in_state(NameState::Held).await, "a:awaited a:held a:rw a:s");
        assert_eq!(in_state(NameState::Awaited).await, "a:awaited");
        assert_eq!(in_state(NameState::Orphaned).await, "");

        let queue = two.admin().queue("a:awaited").await.unwrap();
        let holders: Vec<&str> = queue.iter().map(|waiter| &*waiter.holder).collect();
        assert_eq!(holders, ["first", "second"]);
        assert_eq!(two.admin().queue("a").await.unwrap(), []);
        for task in waiting {
            task.abort();
        }
        drop((held, awaited, permits, reader, other));
    }

    async fn every_name_is_on_one_page_however_many_there_are(db: &Db) {
        let rowlock = db.rowlock().await;
        rows(db, (0..7_200).map(|n| format!("n{n:05}"))).await;
        let all: Vec<String> = (0..7_200).map(|n| format!("n{n:05}")).collect();
        let held = [take(&rowlock, "n00999", LONG).await, take(&rowlock, "n01000", LONG).await, take(&rowlock, "n07199", LONG).await];
        for limit in [1_000, 7, 999] {
            let filter = NameFilter::new().limit(limit);
            let found = if limit == 7 { pages(&rowlock, filter.prefix("n00")).await } else { pages(&rowlock, filter).await };
            let expected = if limit == 7 { &all[..1_000] } else { &all[..] };
            assert_eq!(names(&found), expected, "{limit}");
            assert!(found.iter().all(|page| page.items.len() <= limit as usize));
        }
        // One call reads five thousand rows at most.
        let found = pages(&rowlock, NameFilter::new().state(NameState::Held)).await;
        assert_eq!((names(&found), found.len()), (vec!["n00999", "n01000", "n07199"], 2));
        assert_eq!(rowlock.admin().list().await.unwrap().len(), 3);
        drop(held);
    }

    async fn a_name_with_many_permits_is_one_name(db: &Db) {
        let rowlock = db.rowlock().await;
        let permit = rowlock.semaphore("m", 10_000).acquire().await.unwrap();
        let key = |n: u32| db.bytes(&format!("m\0{}", Uuid::from_u128(n.into()).simple()));
        let keys: Vec<String> = (1..=2_500).map(|n| format!("SELECT {} AS k", key(n))).collect();
        for keys in keys.chunks(250) {
            db.execute(&format!(
                "INSERT INTO rowlock_lock (name, grant_id, fence, holder, acquired_at, expires_at, capacity, weight) \
                 SELECT k.k, l.grant_id, l.fence, 'copy', l.acquired_at, l.expires_at, l.capacity, 1 \
                 FROM rowlock_lock l, ({}) k WHERE l.grant_id IS NOT NULL AND l.holder <> 'copy'",
                keys.join(" UNION ALL ")
            ))
            .await;
        }
        let others = [take(&rowlock, "l", LONG).await, take(&rowlock, "n", LONG).await];
        let found = pages(&rowlock, NameFilter::new()).await;
        assert_eq!(names(&found), ["l", "m", "n"]);
        assert_eq!(found[0].items[1].holders.len(), 100);
        let all = rowlock.admin().name("m").await.unwrap().unwrap();
        assert_eq!(all.holders.len(), 2_501);
        assert_eq!(rowlock.admin().list().await.unwrap().len(), 2_503);
        db.execute("DELETE FROM rowlock_lock WHERE holder = 'copy'").await;
        drop((permit, others));
    }

    async fn records_are_listed_page_by_page(db: &Db) {
        let idempotency = db.rowlock().await.idempotency();
        begin_new(&idempotency, "k").await.complete(&outcome("done")).await.unwrap();
        let running = begin_new(&idempotency, "running").await;
        let columns = "state, attempt, abandoned, max_attempts, attempt_id, holder, fingerprint, bound, content_type, outcome, \
                       began_at, attempted_at, lease_until, done_at, retain_until, forget_at, clean_at";
        for (scope, n) in [("a", 2_100), ("b", 50)] {
            for n in 0..n {
                let (scope, key) = (db.bytes(scope), db.bytes(&format!("{n:04}")));
                let of = db.bytes("k");
                db.execute(&format!(
                    "INSERT INTO rowlock_idempotency (scope, idempotency_key, {columns}) \
                     SELECT {scope}, {key}, {columns} FROM rowlock_idempotency WHERE idempotency_key = {of}"
                ))
                .await;
            }
        }
        let all = async |filter: RecordFilter| {
            let (mut keys, mut filter) = (Vec::new(), filter);
            loop {
                let page = idempotency.list(&filter).await.unwrap();
                keys.extend(page.items.iter().map(|info| info.record.clone()));
                if page.next.is_none() {
                    return keys;
                }
                filter = filter.from(page.next);
            }
        };
        let keys = all(RecordFilter::new().limit(1_000)).await;
        assert!(keys.is_sorted() && keys.len() == 2_152, "{}", keys.len());
        assert_eq!(keys.iter().collect::<BTreeSet<_>>().len(), keys.len());
        assert_eq!(all(RecordFilter::new().scope("a", "")).await.len(), 2_100);
        assert_eq!(all(RecordFilter::new().scope("a", "00")).await.len(), 100);
        assert_eq!(all(RecordFilter::new().scope("c", "")).await, []);
        let found = all(RecordFilter::new().state(RecordState::Running)).await;
        assert_eq!(found, [RecordKey::new("scope", "running").unwrap()]);
        drop(running);
    }

    async fn records_that_need_a_person_are_found_among_many(db: &Db) {
        let idempotency = db.rowlock().await.idempotency().max_attempts(1);
        begin_new(&idempotency, "done").await.complete(&outcome("done")).await.unwrap();
        let live = begin_new(&idempotency, "live").await;
        let mut guards = Vec::new();
        for key in ["lapsed", "unknown", "stepped", "poisoned"] {
            guards.push(begin_new(&idempotency, key).await);
        }
        let past = db.past();
        let set = async |key: &str, what: String| {
            let key = db.bytes(key);
            db.execute(&format!("UPDATE rowlock_idempotency SET {what} WHERE idempotency_key = {key}")).await;
        };
        set("lapsed", format!("lease_until = {past}, max_attempts = 3")).await;
        set("poisoned", format!("lease_until = {past}")).await;
        set("stepped", format!("lease_until = {past}, open_step = 'charge'")).await;
        set("unknown", "state = 'unknown', open_step = 'charge', clean_at = NULL, forget_at = NULL".into()).await;
        let found = idempotency.list_undecided().await.unwrap();
        let mut found: Vec<(String, RecordState)> =
            found.into_iter().map(|info| (String::from_utf8_lossy(info.record.key()).into_owned(), info.state)).collect();
        found.sort_by(|one, two| one.0.cmp(&two.0));
        let state = |key: &str, state| (key.to_owned(), state);
        let expected = [
            state("lapsed", RecordState::Lapsed),
            state("poisoned", RecordState::Poisoned),
            state("stepped", RecordState::Unknown),
            state("unknown", RecordState::Unknown),
        ];
        assert_eq!(found, expected);
        drop((live, guards));
    }

    async fn a_page_that_is_none_is_refused(db: &Db) {
        let rowlock = db.rowlock().await;
        for filter in [NameFilter::new().limit(0), NameFilter::new().limit(1_001), NameFilter::new().from(Some("x".into()))] {
            let error = rowlock.admin().names(&filter).await.unwrap_err();
            assert!(matches!(error, Error::Invalid(_)), "{error}");
        }
        let idempotency = rowlock.idempotency();
        for filter in [RecordFilter::new().limit(0), RecordFilter::new().from(Some("0".into()))] {
            let error = idempotency.list(&filter).await.unwrap_err();
            assert!(matches!(error, Error::Invalid(_)), "{error}");
        }
        // The text of a cursor comes from a browser: no text is more than a place in the list.
        for from in ["", "ff", "0561", "00", "ffff"] {
            idempotency.list(&RecordFilter::new().from(Some(from.into()))).await.unwrap();
            rowlock.admin().names(&NameFilter::new().from(Some(from.into()))).await.unwrap();
        }
    }

    async fn an_operator_ends_the_session_of_a_client(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let held = one.lock("a").in_session().acquire().await.unwrap();
        let [session] = &two.admin().sessions().await.unwrap()[..] else { panic!("one session") };
        assert_eq!(two.admin().end_session(session.id).await.unwrap(), 1);
        assert_eq!(two.admin().sessions().await.unwrap(), []);
        let next = take(&two, "a", LONG).await;
        assert!(next.fence() > held.fence());
        held.lost().await;
        assert_eq!(two.admin().end_session(session.id).await.unwrap(), 0);
    }

    async fn a_ping_needs_the_tables(db: &Db) {
        let rowlock = db.rowlock().await;
        rowlock.ping().await.unwrap();
        db.execute("ALTER TABLE rowlock_database RENAME TO gone").await;
        rowlock.ping().await.unwrap_err();
        db.execute("ALTER TABLE gone RENAME TO rowlock_database").await;
        rowlock.ping().await.unwrap();
    }
}
