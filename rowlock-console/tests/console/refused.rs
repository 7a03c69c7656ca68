//! What an action refuses, or asks about again.

use std::time::Duration;

use rowlock_test::{eventually, waiters};

use crate::actions::{do_it, record};
use crate::browser::{Browser, Page};
use crate::log;
use crate::server::{attempt, console, no_answer, over_a_socket};

const LONG: Duration = Duration::from_mins(10);

/// A second page for pausing `a`.
async fn sure_of_a_pause(browser: &mut Browser) -> Page {
    let form = browser.open("/act/pause?name=a").await.form();
    browser.submit(&form.with("reason", "a move")).await
}

over_a_socket! {
    async fn an_action_needs_a_reason_and_a_second_answer() {
        let (server, rowlock, _db) = console(|console| console).await;
        let held = rowlock.lock("a").acquire().await.unwrap();
        let mut browser = server.browser();
        let form = browser.open("/act/free?name=a").await.form();
        for reason in ["", "  \n", &"x".repeat(501)] {
            browser.submit(&form.with("reason", reason)).await.says(422, "Give a reason");
        }
        browser.submit(&form.with("reason", "a reason")).await.says(200, "Are you sure?");
        assert!(held.is_held());
    }

    /// Between the page and the answer, the lock has another holder.
    async fn another_holder_than_the_one_that_was_shown_loses_nothing() {
        let (server, rowlock, _db) = console(|console| console).await;
        let first = rowlock.lock("a").acquire().await.unwrap();
        let mut browser = server.browser();
        let form = browser.open("/act/free?name=a").await.form().with("reason", "it hangs");
        let sure = browser.submit(&form).await.form();
        first.release().await.unwrap();
        let second = rowlock.lock("a").acquire().await.unwrap();
        let page = browser.submit(&sure).await;
        page.says(409, "It has changed since this page was made");
        page.says(409, &format!("under fence {}", second.fence()));
        assert!(second.is_held());
        second.release().await.unwrap();
        // The form was used: another sending shows what became of it.
        browser.submit(&sure).await.says(409, "It has changed since this page was made");
    }

    async fn a_form_of_the_first_page_and_one_that_is_made_up_do_nothing() {
        let (server, rowlock, _db) = console(|console| console).await;
        let held = rowlock.lock("a").acquire().await.unwrap();
        let mut browser = server.browser();
        let form = browser.open("/act/free?name=a").await.form().with("reason", "x");
        for sure in ["yes", "0"] {
            browser.submit(&form.with("sure", sure)).await.says(409, "This form is too old");
        }
        assert!(held.is_held());
    }

    async fn what_the_database_refuses_is_told_and_logged() {
        let (server, rowlock, _db) = console(|console| console).await;
        let attempt = attempt(&rowlock, "large").await;
        attempt.step_once("charge", no_answer()).await.unwrap_err();
        attempt.release().await.unwrap();
        let mut browser = server.browser();
        let form = browser.open(&format!("/act/resolve?{}", record("large"))).await.form();
        let large = format!("\"{}\"", "x".repeat(1_100_000));
        let page = do_it(&mut browser, &form.with("happened", "yes").with("result", &large), "a large result").await;
        page.says(409, "It was not done");
        let lines = log::with("a large result");
        assert!(lines.iter().any(|line| line.contains("WARN") && line.contains("not done")), "{lines:?}");
    }

    async fn a_log_line_is_one_line() {
        let (server, rowlock, _db) = console(|console| console).await;
        let held = rowlock.lock("a\nb \u{1b}[31m").acquire().await.unwrap();
        let mut browser = server.browser();
        let locks = browser.open("/locks").await;
        let page = browser.open(&locks.link("Free it")).await;
        let form = page.form().with("reason", "first line\r\nsecond line \u{1b}[2J");
        let form = browser.submit(&form).await.form();
        log::keep();
        assert_eq!(browser.submit(&form).await.status, 303);
        assert!(!held.is_held());
        let lines = log::with("first line");
        assert_eq!(lines.len(), 2, "one before it, one after it: {lines:?}");
        assert!(lines[0].contains("begins") && lines[1].contains("done"), "{lines:?}");
        for line in lines {
            assert!(line.contains("second line") && !line.contains('\u{1b}'), "{line}");
        }
    }

    async fn a_stale_form_ends_no_other_quarantine() {
        let (server, rowlock, _db) = console(|console| console).await;
        let admin = rowlock.admin();
        admin.quarantine(LONG).await.unwrap();
        let mut browser = server.browser();
        let form = browser.open("/act/end-quarantine").await.form().with("reason", "it was a test");
        let sure = browser.submit(&form).await.form();
        admin.end_quarantine().await.unwrap();
        admin.quarantine(LONG).await.unwrap();
        browser.submit(&sure).await.says(409, "It has changed since this page was made");
        assert!(admin.quarantine_left().await.unwrap().is_some());
    }

    async fn a_form_that_was_used_pauses_nothing_again() {
        let (server, rowlock, _db) = console(|console| console).await;
        let mut browser = server.browser();
        let sure = sure_of_a_pause(&mut browser).await.form();
        assert_eq!(browser.submit(&sure).await.status, 303);
        assert!(rowlock.admin().resume("a").await.unwrap());
        assert_eq!(browser.submit(&sure).await.status, 303);
        assert_eq!(rowlock.admin().paused("a").await.unwrap(), None);
    }

    async fn a_session_that_has_got_more_locks_is_shown_again() {
        let (server, rowlock, db) = console(|console| console).await;
        let other = db.rowlock().await;
        let _first = other.lock("first").in_session().acquire().await.unwrap();
        let mut browser = server.browser();
        let page = browser.open("/sessions").await;
        let page = browser.open(&page.link("End it")).await;
        let sure = browser.submit(&page.form().with("reason", "it is gone")).await.form();
        let _second = other.lock("second").in_session().acquire().await.unwrap();
        browser.submit(&sure).await.says(409, "It loses 2 locks:");
        assert_eq!(rowlock.admin().list().await.unwrap().len(), 2);
    }

    async fn bounds_are_told_before_the_second_question() {
        let (server, rowlock, _db) = console(|console| console).await;
        let mut browser = server.browser();
        let pause = browser.open("/act/pause?name=a").await.form().with("reason", "x");
        let quarantine = browser.open("/act/quarantine").await.form().with("reason", "x");
        for time in ["1ms", "1000days"] {
            for form in [&pause, &quarantine] {
                browser.submit(&form.with("time", time)).await.says(422, "Give a time of 100ms to 366 days");
            }
        }
        browser.submit(&pause.with("time", "366days")).await.says(200, "Are you sure?");
        browser.submit(&pause.with("reason", &"é".repeat(128))).await.says(422, "255 bytes at most");
        rowlock.admin().pause("a", None, "a move").await.unwrap();
        browser.open("/act/forget?name=a").await.says(200, "resume it first");
    }

    async fn a_page_says_what_a_pause_or_a_quarantine_keeps_from_happening() {
        let (server, rowlock, db) = console(|console| console).await;
        let other = db.rowlock().await;
        let _held = rowlock.lock("a").acquire().await.unwrap();
        let waiting = tokio::spawn({
            let lock = other.lock("a");
            async move { lock.acquire().await }
        });
        eventually("it waits", async || waiters(&rowlock, "a").await.len() == 1).await;
        let mut browser = server.browser();
        let sure = sure_of_a_pause(&mut browser).await;
        assert!(!sure.text("main").contains("cannot be undone"), "{}", sure.html);
        let free = browser.open("/act/free?name=a").await;
        free.says(200, "The first of 1 waiter gets it.");
        browser.submit(&free.form().with("reason", "x")).await.says(200, "This cannot be undone.");
        rowlock.admin().quarantine(LONG).await.unwrap();
        let page = browser.open("/act/free?name=a").await;
        page.says(200, "The database is in quarantine until");
        page.says(200, "None of the 1 waiter gets it before.");
        rowlock.admin().pause("a", None, "a move").await.unwrap();
        let page = browser.open("/act/free?name=a").await;
        page.says(200, "None of the 1 waiter gets it before the end of the pause.");
        waiting.abort();
    }

    async fn an_address_answers_no_question() {
        let (server, rowlock, _db) = console(|console| console).await;
        let attempt = attempt(&rowlock, "k").await;
        attempt.step_once("charge", no_answer()).await.unwrap_err();
        attempt.release().await.unwrap();
        let mut browser = server.browser();
        let path = format!("/act/resolve?{}&happened=no&result=1&reason=because", record("k"));
        let form = browser.open(&path).await.form();
        assert_eq!(form.fields.get("happened"), None);
        assert_eq!((form.fields["result"].as_str(), form.fields["reason"].as_str()), ("", ""));
    }
}
