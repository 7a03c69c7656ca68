//! Actions: what they say before, what they do, what they refuse, what they log.

use std::time::Duration;

use rowlock::{Kind, RecordState, Rowlock, Scope};
use rowlock_test::{Db, eventually, on_every_engine, waiters};
use sha2::{Digest, Sha256};

use crate::browser::{Browser, Form, Page};
use crate::log;
use crate::server::{Server, attempt, no_answer, of_ann};

const LONG: Duration = Duration::from_mins(10);

/// Goes through both questions. The reason is also a word to find the log line by.
pub(crate) async fn do_it(browser: &mut Browser, form: &Form, reason: &str) -> Page {
    log::keep();
    let form = form.with("reason", reason);
    let sure = browser.submit(&form).await;
    sure.says(200, "Are you sure?");
    sure.says(200, reason);
    let done = browser.submit(&sure.form()).await;
    let lines = log::with(reason);
    let line = lines
        .last()
        .unwrap_or_else(|| panic!("{reason} was not logged: {}", done.html));
    assert!(line.contains("who=\"Ann\""), "{line}");
    done
}

pub(crate) fn record(key: &str) -> String {
    format!("scope={}&key={}", hex::encode("shop"), hex::encode(key))
}

on_every_engine! {
    async fn a_lock_is_freed(db: &Db) {
        let rowlock = db.rowlock().await;
        let server = Server::of(of_ann(&rowlock).router()).await;
        let mut browser = server.browser();
        browser.open("/act/free?name=a").await.says(200, "there is nothing to free");
        let held = rowlock.lock("a").ttl(LONG).acquire().await.unwrap();
        let other = db.rowlock().await;
        let waiting = tokio::spawn({
            let lock = other.lock("a").ttl(LONG);
            async move { lock.acquire().await }
        });
        eventually("it waits", async || waiters(&rowlock, "a").await.len() == 1).await;
        let page = browser.open("/act/free?name=a").await;
        page.says(200, "These lose it:");
        page.says(200, &format!("with a lock, under fence {}", held.fence()));
        page.says(200, "The first of 1 waiter gets it");
        let done = do_it(&mut browser, &page.form(), "a holder that hangs").await;
        browser.follow(&done).await.says(200, "The lock was freed.");
        assert!(!held.is_held());
        waiting.await.unwrap().unwrap().release().await.unwrap();
    }

    /// A double click: the waiter that got the lock by the first one keeps it.
    async fn a_form_that_is_sent_twice_at_once_frees_one_holder(db: &Db) {
        let (rowlock, other) = (db.rowlock().await, db.rowlock().await);
        let server = Server::of(of_ann(&rowlock).router()).await;
        let mut browser = server.browser();
        let held = rowlock.lock("a").ttl(LONG).acquire().await.unwrap();
        let waiting = tokio::spawn({
            let lock = other.lock("a").ttl(LONG);
            async move { lock.acquire().await }
        });
        eventually("it waits", async || waiters(&rowlock, "a").await.len() == 1).await;
        let form = browser.open("/act/free?name=a").await.form().with("reason", "it hangs");
        let sure = browser.submit(&form).await.form();
        let mut second = browser.clone();
        let (one, two) = tokio::join!(browser.submit(&sure), second.submit(&sure));
        assert_eq!((one.status, two.status), (303, 303), "{} {}", one.html, two.html);
        assert!(!held.is_held());
        let next = waiting.await.unwrap().unwrap();
        let later = browser.submit(&sure).await;
        assert_eq!(later.status, 303, "{}", later.html);
        let left = rowlock.admin().holders("a").await.unwrap();
        assert_eq!(left.iter().map(|held| held.fence).collect::<Vec<_>>(), [next.fence()]);
    }

    async fn a_capacity_is_changed_and_a_name_forgotten(db: &Db) {
        let rowlock = db.rowlock().await;
        let server = Server::of(of_ann(&rowlock).router()).await;
        let mut browser = server.browser();
        let permit = rowlock.semaphore("exports", 2).ttl(LONG).acquire().await.unwrap();
        let page = browser.open("/act/capacity?name=exports").await;
        page.says(200, "Now it is a semaphore of 2");
        let form = page.form();
        for wrong in ["", "0", "-1", "2147483647", "two"] {
            let form = form.with("capacity", wrong).with("reason", "x");
            browser.submit(&form).await.says(422, "Give the new capacity");
        }
        let done = do_it(&mut browser, &form.with("capacity", "5"), "more printers").await;
        browser.follow(&done).await.says(200, "The capacity was changed.");
        let kind = async || {
            let page = rowlock.admin().names(&rowlock::NameFilter::new()).await.unwrap();
            page.items.first().map(|info| info.kind)
        };
        assert!(matches!(kind().await, Some(Kind::Semaphore { capacity: 5, .. })));

        browser.open("/act/forget?name=exports").await.says(200, "A name that is in use is not forgotten");
        permit.release().await.unwrap();
        let page = browser.open("/act/forget?name=exports").await;
        let done = do_it(&mut browser, &page.form(), "it becomes a lock").await;
        browser.follow(&done).await.says(200, "The name was forgotten.");
        assert_eq!(kind().await, None);
        browser.open("/act/forget?name=exports").await.says(200, "there is nothing to forget");
        browser.open("/act/capacity?name=exports").await.says(200, "Only a semaphore has a capacity");
    }

    async fn a_name_is_paused_and_resumed(db: &Db) {
        let rowlock = db.rowlock().await;
        let server = Server::of(of_ann(&rowlock).router()).await;
        let mut browser = server.browser();
        browser.open("/act/resume?name=a").await.says(200, "It is not paused.");
        let page = browser.open("/act/pause?name=a").await;
        browser.submit(&page.form().with("time", "soon").with("reason", "x")).await.says(422, "The time cannot be read");
        let done = do_it(&mut browser, &page.form(), "the bank is down").await;
        browser.follow(&done).await.says(200, "The name is paused.");
        assert!(rowlock.lock("a").try_acquire().await.unwrap().is_none());
        browser.open("/lock?name=a").await.says(200, "paused by Ann until it is resumed (the bank is down)");
        browser.open("/locks?state=paused").await.says(200, "(the bank is down)");
        let page = browser.open("/act/resume?name=a").await;
        let done = do_it(&mut browser, &page.form(), "it is up again").await;
        browser.follow(&done).await.says(200, "The name is granted again.");
        rowlock.lock("a").try_acquire().await.unwrap().expect("it is free").release().await.unwrap();
    }

    async fn a_session_is_ended(db: &Db) {
        let rowlock = db.rowlock().await;
        let server = Server::of(of_ann(&rowlock).router()).await;
        let mut browser = server.browser();
        let other = db.rowlock().await;
        let held = other.lock("ledger").in_session().acquire().await.unwrap();
        let sessions = browser.open("/sessions").await;
        let page = browser.open(&sessions.link("End it")).await;
        page.says(200, "It loses 1 lock:");
        assert_eq!(page.texts("main ul li"), ["ledger"]);
        let done = do_it(&mut browser, &page.form(), "its machine is gone").await;
        browser.follow(&done).await.says(200, "The session was ended.");
        assert!(rowlock.admin().sessions().await.unwrap().is_empty());
        held.lost().await;
        browser.open(&sessions.link("End it")).await.says(200, "it has ended");
    }

    async fn a_record_is_resolved_and_another_one_reset(db: &Db) {
        let rowlock = db.rowlock().await;
        let server = Server::of(of_ann(&rowlock).router()).await;
        let mut browser = server.browser();
        let keys = rowlock.idempotency();
        let state = async |key: &str| keys.inspect(Scope("shop").key(key)).await.unwrap().unwrap().state;
        for key in ["happened", "not"] {
            let attempt = attempt(&rowlock, key).await;
            attempt.step_once("charge", no_answer()).await.unwrap_err();
            drop(attempt);
            eventually("it is unknown", async || state(key).await == RecordState::Unknown).await;
        }
        browser.open("/").await.says(200, "unknown: shop / happened");
        let page = browser.open(&format!("/act/resolve?{}", record("happened"))).await;
        page.says(200, "may or may not have happened");
        let form = page.form();
        let asked = browser.submit(&form.with("reason", "x")).await;
        asked.says(422, "Say whether the step happened");
        let asked = browser.submit(&form.with("reason", "x").with("happened", "yes").with("result", "{")).await;
        asked.says(422, "The result is not JSON");
        let form = form.with("happened", "yes").with("result", "42");
        let reason = format!("the provider has it, {}", db.name());
        let seen = keys.inspect(Scope("shop").key("happened")).await.unwrap().unwrap();
        let done = do_it(&mut browser, &form, &reason).await;
        let (number, digest) = (seen.attempt, hex::encode(Sha256::digest("42")));
        let what = format!("the step charge of attempt {number} happened, with a result whose SHA-256 is {digest}");
        let lines = log::with(&reason);
        assert!(lines.len() == 2 && lines.iter().all(|line| line.contains(&what)), "{lines:?}");
        browser.follow(&done).await.says(200, "The record was resolved.");
        let attempt = attempt(&rowlock, "happened").await;
        let result = attempt.step_once("charge", no_answer()).await.unwrap();
        assert_eq!(result, 42);
        attempt.release().await.unwrap();

        let page = browser.open(&format!("/act/resolve?{}", record("not"))).await;
        let done = do_it(&mut browser, &page.form().with("happened", "no"), "the provider has no charge").await;
        assert_eq!(done.status, 303, "{}", done.html);
        assert_eq!(state("not").await, RecordState::Free);
        browser.open(&format!("/act/resolve?{}", record("not"))).await.says(200, "there is nothing to resolve");
        let page = browser.open(&format!("/act/reset?{}", record("not"))).await;
        let done = do_it(&mut browser, &page.form(), "it may run again now").await;
        browser.follow(&done).await.says(200, "The record was reset.");
        browser.open(&format!("/act/reset?{}", record("none"))).await.says(200, "There is no such record");
    }

    async fn what_was_done_in_part_is_told_and_logged(db: &Db) {
        if db.one_writer() {
            return; // A transaction has all permits.
        }
        let one = db.rowlock().await;
        let of = one.semaphore("s", 2).ttl(LONG);
        let held = [of.acquire().await.unwrap(), of.acquire().await.unwrap()];
        let hasty = Rowlock::builder().operation_timeout(Duration::from_secs(3));
        let rowlock = hasty.connect(&db.url).await.unwrap();
        let server = Server::of(of_ann(&rowlock).router()).await;
        let mut browser = server.browser();
        let form = browser.open("/act/free?name=s").await.form();
        let mut tx = db.begin().await;
        tx.pin(&held[0]).await.unwrap();
        let [reason, then] = ["one of two", "the other one"].map(|reason| format!("{reason}, {}", db.name()));
        let page = do_it(&mut browser, &form, &reason).await;
        page.says(409, "Not all of it was done");
        let [first, second] = [&held[0], &held[1]].map(|held| format!("under fence {}", held.fence()));
        page.says(409, &second);
        let losers = page.text("main ul");
        assert!(losers.contains(&first) && !losers.contains(&second), "{losers}");
        let lines = log::with(&reason);
        let line = lines.iter().find(|line| line.contains("WARN")).unwrap();
        assert!(line.contains(&format!("had it {second}")), "{line}");
        tx.commit().await.unwrap();
        let form = page.form();
        let done = do_it(&mut browser, &form, &then).await;
        assert_eq!(done.status, 303, "{}", done.html);
        let lines = log::with(&then);
        assert!(lines[1].contains(&format!("had it {first}")), "{lines:?}");
    }

    async fn a_quarantine_begins_and_ends(db: &Db) {
        let rowlock = db.rowlock().await;
        let server = Server::of(of_ann(&rowlock).router()).await;
        let mut browser = server.browser();
        browser.open("/act/end-quarantine").await.says(200, "There is no quarantine to end");
        let overview = browser.open("/").await;
        let page = browser.open(&overview.link("Begin a quarantine")).await;
        let form = page.form();
        for (wrong, why) in [("", "The time cannot be read"), ("soon", "The time cannot be read")] {
            browser.submit(&form.with("time", wrong).with("reason", "x")).await.says(422, why);
        }
        let done = do_it(&mut browser, &form.with("time", "10m"), "a failover").await;
        browser.follow(&done).await.says(200, "in quarantine for another ");
        assert!(rowlock.admin().quarantine_left().await.unwrap().is_some());
        let overview = browser.open("/").await;
        let page = browser.open(&overview.link("End the quarantine")).await;
        let done = do_it(&mut browser, &page.form(), "nothing was forgotten").await;
        browser.follow(&done).await.says(200, "The quarantine was ended.");
        assert_eq!(rowlock.admin().quarantine_left().await.unwrap(), None);
    }
}
