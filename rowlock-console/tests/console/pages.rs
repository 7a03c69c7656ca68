//! What the pages show.

use std::time::Duration;

use axum::Router;
use rowlock::{Engine, Outcome};
use rowlock_test::{Db, eventually, on_every_engine, waiters};

use crate::server::{Server, attempt, console, of_ann, over_a_socket};

const LONG: Duration = Duration::from_mins(10);

on_every_engine! {
    async fn the_pages_show_what_the_database_has(db: &Db) {
        let rowlock = db.rowlock().await;
        let server = Server::of(of_ann(&rowlock).router()).await;
        let mut browser = server.browser();
        browser.open("/").await.says(200, "Nothing needs a person");

        let held = rowlock.lock("stock:42").ttl(LONG).acquire().await.unwrap();
        let permit = rowlock.semaphore("exports", 3).weight(2).ttl(LONG).acquire().await.unwrap();
        let read = rowlock.rw_lock("catalogue").ttl(LONG).read().await.unwrap();
        let other = db.rowlock().await;
        let in_session = other.lock("ledger").in_session().acquire().await.unwrap();
        let waiting = tokio::spawn({
            let lock = other.lock("stock:42").ttl(LONG);
            async move { lock.acquire().await }
        });
        eventually("it waits", async || waiters(&rowlock, "stock:42").await.len() == 1).await;

        let locks = browser.open("/locks").await;
        let rows = locks.texts("#live tbody tr");
        assert_eq!(rows.len(), 4, "{rows:?}");
        for (row, words) in rows.iter().zip([
            ["catalogue", "read/write lock", "0 Free it"],
            ["exports", "semaphore of 3", "0 Free it"],
            ["ledger", "with its session", "0 Free it"],
            ["stock:42", "lock", "1 Free it"],
        ]) {
            for word in words {
                assert!(row.contains(word), "{word}: {row}");
            }
        }
        assert!(rows[3].contains(&held.fence().to_string()), "{rows:?}");
        locks.says(200, "Pages are by name");
        let names = async |browser: &mut crate::browser::Browser, query: &str| {
            browser.open(&format!("/locks?{query}")).await.texts("td[data-label=Name]")
        };
        assert_eq!(names(&mut browser, "prefix=ex").await, ["exports"]);
        assert_eq!(names(&mut browser, "state=awaited").await, ["stock:42"]);
        assert_eq!(names(&mut browser, "state=orphaned").await, [""; 0]);
        assert_eq!(names(&mut browser, "sort=waiters").await[0], "stock:42");
        assert_eq!(names(&mut browser, "sort=age").await, ["stock:42", "exports", "catalogue", "ledger"]);

        let one = browser.open(&locks.link("stock:42")).await;
        let tables = one.texts("tbody tr");
        assert_eq!(tables.len(), 2, "{tables:?}");
        assert!(tables[1].starts_with("1 "), "the first in the queue: {tables:?}");
        browser.open(&locks.link("exports")).await.says(200, "2 of 3 permits are taken");
        let unknown = browser.open("/lock?name=unknown").await;
        unknown.says(200, "no row of this name");
        assert_eq!(unknown.link("Pause it"), "/act/pause?name=unknown");

        let sessions = browser.open("/sessions").await;
        let rows = sessions.texts("tbody tr");
        assert!(rows.iter().any(|row| row.contains("1 End it")), "{rows:?}");

        let overview = browser.open("/").await;
        let counts = overview.text(".counts");
        assert!(counts.contains("Names in use 4") && counts.contains("Waiters 1"), "{counts}");
        overview.says(200, "In the last minute, the looks have seen ");
        drop((held, permit, read, in_session));
        waiting.await.unwrap().unwrap().release().await.unwrap();
    }

    async fn the_pages_of_jobs_and_records_show_what_the_database_has(db: &Db) {
        let rowlock = db.rowlock().await;
        let server = Server::of(of_ann(&rowlock).router()).await;
        let mut browser = server.browser();
        for (is_good, message) in [(true, "fine"), (false, "no paper")] {
            let held = rowlock.lock("report").ttl(LONG).acquire().await.unwrap();
            held.begin_run().await.unwrap();
            assert!(held.end_run(is_good, message).await.unwrap());
            held.release().await.unwrap();
        }
        let jobs = browser.open("/jobs").await;
        let rows = jobs.text("#live tbody tr");
        assert!(rows.starts_with("report failed ") && rows.contains("no paper"), "{rows}");
        assert_eq!(jobs.texts("svg rect").len(), 2);
        let label = jobs.values("svg", "aria-label").join("");
        assert!(label.starts_with("The last 2 runs: 1 failed, 0 abandoned"), "{label}");
        browser.open("/").await.says(200, "report: failed");
        let lock = browser.open(&jobs.link("report")).await;
        assert_eq!(lock.texts("td[data-label=State]"), ["failed", "succeeded"]);
        browser.open("/jobs?prefix=x").await.says(200, "No such jobs");

        let paid = attempt(&rowlock, "order-1").await;
        paid.step("charge", async { Ok::<_, rowlock::Error>(7) }).await.unwrap();
        paid.complete(&Outcome::json(&"paid").unwrap()).await.unwrap();
        let running = attempt(&rowlock, [0xff, 0x00]).await;

        let records = browser.open("/records").await;
        assert_eq!(records.texts("td[data-label=Key]"), ["order-1", "0xff00"]);
        assert_eq!(records.texts("td[data-label=State]"), ["done", "running"]);
        let only = browser.open("/records?scope=shop&key=order&state=done").await;
        assert_eq!(only.texts("td[data-label=Key]"), ["order-1"]);
        let only = browser.open("/records?scope=73686f70&key=ff&hex=on").await;
        assert_eq!(only.texts("td[data-label=Key]"), ["0xff00"]);
        let record = browser.open(&records.link("order-1")).await;
        record.says(200, "hidden (6 bytes)");
        assert_eq!(record.texts("td[data-label=Result]"), ["hidden (1 byte)"]);
        browser.open(&records.link("0xff00")).await.says(200, "running, for another");
        browser.open("/record?scope=00&key=00").await.says(200, "There is no such record");
        running.release().await.unwrap();
    }
}

over_a_socket! {
    async fn outcomes_are_shown_where_that_is_set() {
        let (server, rowlock, _db) = console(|console| console.show_outcomes(true)).await;
        let paid = attempt(&rowlock, "order-1").await;
        paid.complete(&Outcome::json(&"<paid>").unwrap()).await.unwrap();
        let record = format!("/record?scope={}&key={}", hex::encode("shop"), hex::encode("order-1"));
        let page = server.browser().open(&record).await;
        assert_eq!(page.text("code.outcome"), "\"<paid>\"");
    }

    async fn a_list_goes_on_where_its_page_ends() {
        let (server, rowlock, _db) = console(|console| console).await;
        let mut held = Vec::new();
        for number in 0..60 {
            held.push(rowlock.lock(format!("n{number:02}")).ttl(LONG).acquire().await.unwrap());
        }
        let mut browser = server.browser();
        let first = browser.open("/locks?prefix=n").await;
        let second = browser.open(&first.link("Next page")).await;
        let names = [first.texts("td[data-label=Name]"), second.texts("td[data-label=Name]")].concat();
        let expected: Vec<String> = (0..60).map(|number| format!("n{number:02}")).collect();
        assert_eq!(names, expected);
        second.says(200, "This is the last page");
        for held in &held {
            held.begin_run().await.unwrap();
        }
        let first = browser.open("/jobs?prefix=n").await;
        let second = browser.open(&first.link("Next page")).await;
        let names = [first.texts("td[data-label=Job]"), second.texts("td[data-label=Job]")].concat();
        assert_eq!(names, expected);
    }

    async fn names_in_use_are_found_behind_many_that_are_free() {
        let (server, rowlock, db) = console(|console| console).await;
        db.execute(
            "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 12000)
             INSERT INTO rowlock_lock (name, fence) SELECT CAST(printf('free%05d', n) AS BLOB), 2000000000000000 FROM n",
        )
        .await;
        let _held = rowlock.lock("used").ttl(LONG).acquire().await.unwrap();
        let mut browser = server.browser();
        assert_eq!(browser.open("/locks").await.texts("td[data-label=Name]"), ["used"]);
        let counts = browser.open("/").await.text("dl.counts");
        assert!(counts.contains("Names in use among the first 5,000 rows 0+"), "{counts}");
    }

    async fn only_a_name_that_is_orphaned_is_marked() {
        let (server, rowlock, db) = console(|console| console).await;
        rowlock.lock("lock").acquire().await.unwrap().release().await.unwrap();
        rowlock.semaphore("permits", 2).acquire().await.unwrap().release().await.unwrap();
        db.execute("UPDATE rowlock_lock SET waiters = 1").await;
        let page = server.browser().open("/locks").await;
        assert_eq!(page.texts("td[data-label=Name]"), ["lock", "permits"]);
        assert_eq!(page.texts("td strong.bad"), ["nobody"]);
    }

    async fn what_needs_a_person_comes_first() {
        let (server, rowlock, db) = console(|console| console).await;
        let held = rowlock.lock("slow").ttl(LONG).acquire().await.unwrap();
        for _ in 0..2 {
            held.begin_run().await.unwrap();
            held.end_run(true, "").await.unwrap();
        }
        held.release().await.unwrap();
        let held = rowlock.lock("slow").ttl(LONG).acquire().await.unwrap();
        held.begin_run().await.unwrap();
        let past = db.past();
        let late = format!("UPDATE rowlock_run SET began_at = {past} WHERE fence = {}", held.fence());
        db.execute(&late).await;
        // A client that has stopped.
        let builder = rowlock::Rowlock::builder().holder("stopped").session_ttl(LONG);
        let stopped = builder.connect(&db.url).await.unwrap();
        let _held = stopped.lock("ledger").in_session().acquire().await.unwrap();
        let mut browser = server.browser();
        let page = browser.open("/").await;
        assert!(!page.html.contains("stopped"), "{}", page.html);
        db.execute("UPDATE rowlock_session SET expires_at = expires_at - 400000000").await;
        rowlock.admin().quarantine(LONG).await.unwrap();
        let page = browser.open("/").await;
        let first = page.texts("section")[0].clone();
        let stopped = "stopped: expires in 3m";
        for words in ["in quarantine for another", "slow: overdue", stopped] {
            assert!(first.contains(words), "{words}: {first}");
        }
    }

    async fn a_console_can_be_nested() {
        let db = Db::new(Engine::Sqlite).await;
        let rowlock = db.rowlock().await;
        let held = rowlock.lock("stock:42").ttl(LONG).acquire().await.unwrap();
        let inner = Router::new().nest("/{shop}/locks", of_ann(&rowlock).router());
        let app = Router::new().nest("/admin", inner);
        let server = Server::of(app).await;
        let mut browser = server.browser();
        let base = "/admin/a%20%22shop%22/locks";
        let overview = browser.open(base).await;
        for href in overview.values("header a, link, #live a", "href") {
            assert!(href.starts_with(base), "{href}");
            browser.open(&href).await;
        }
        let src = overview.values("script", "src").join("");
        assert!(browser.open(&src).await.html.contains("EventSource"));
        let live = overview.values("#live", "data-live");
        assert_eq!(live, [format!("{base}/live/overview")]);
        let locks = browser.open(&overview.link("Locks")).await;
        let free = browser.open(&locks.link("Free it")).await;
        let sure = browser.submit(&free.form().with("reason", "a test")).await;
        let done = browser.submit(&sure.form()).await;
        browser.follow(&done).await.says(200, "The lock was freed");
        assert!(!held.is_held());
        browser.get(&format!("{base}/none")).await.says(404, "no such page");
    }

    async fn a_page_says_that_the_database_is_away() {
        let (server, _rowlock, db) = console(|console| console).await;
        db.execute("ALTER TABLE rowlock_session RENAME TO away").await;
        let mut browser = server.browser();
        let page = browser.get("/sessions").await;
        page.says(503, "The database was not read");
        assert_eq!(page.values("#live", "data-live"), ["/live/sessions"]);
        db.execute("ALTER TABLE away RENAME TO rowlock_session").await;
        browser.open("/sessions").await;
    }
}
