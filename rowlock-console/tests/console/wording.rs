//! What the pages say: numbers, empty lists, filters, and what waits for a person.

use std::time::Duration;

use rowlock::Engine;
use rowlock_console::{Access, Console};
use rowlock_test::Db;

use crate::server::{Server, attempt, console, over_a_socket};

const LONG: Duration = Duration::from_mins(10);

over_a_socket! {
    async fn a_record_says_how_many_attempts_were_abandoned() {
        let (server, rowlock, _db) = console(|console| console).await;
        let running = attempt(&rowlock, "order-1").await;
        let mut browser = server.browser();
        let list = browser.open("/records").await;
        assert!(!list.texts("th").contains(&"Attempt".to_owned()), "{:?}", list.texts("th"));
        let facts = browser.open(&list.link("order-1")).await.text("dl");
        assert!(facts.contains(" Abandoned in a row 1 of at most 5 "), "{facts}");
        let number = facts.split_once(" Attempt number ").unwrap().1;
        let number = number.split_once(' ').unwrap().0;
        assert!(number.parse::<i64>().unwrap() > 0, "{facts}");
        running.release().await.unwrap();
    }

    async fn a_pause_stands_on_the_overview() {
        let (server, rowlock, _db) = console(|console| console).await;
        rowlock.admin().pause("imports", None, "the supplier sends twice").await.unwrap();
        rowlock.admin().pause("exports", Some(LONG), "a move").await.unwrap();
        let mut browser = server.browser();
        let page = browser.open("/").await;
        let first = page.texts("section")[0].clone();
        for words in ["Paused names", "imports: paused by ", " until it is resumed (the supplier sends twice)"] {
            assert!(first.contains(words), "{words}: {first}");
        }
        assert!(first.contains(" UTC (a move)") && !first.contains("Nothing needs"), "{first}");
        let counts = page.text(".counts");
        assert!(counts.contains("Names in use 2"), "{counts}");
        browser.open(&page.link("imports")).await;
        rowlock.admin().resume("imports").await.unwrap();
        rowlock.admin().resume("exports").await.unwrap();
        browser.open("/").await.says(200, "Nothing needs a person");
    }

    async fn a_filter_that_cannot_be_read_is_shown_again() {
        let (server, rowlock, _db) = console(|console| console).await;
        let running = attempt(&rowlock, "order-1").await;
        let mut browser = server.browser();
        for (query, field, value) in [
            ("scope=zz&key=6f&hex=on", "The scope", "zz"),
            ("scope=73686f70&key=6f7&hex=on", "The begin of the keys", "6f7"),
        ] {
            let page = browser.open(&format!("/records?{query}")).await;
            page.says(200, &format!("{field} is not in hexadecimal"));
            assert!(page.values(".filter input", "value").contains(&value.to_owned()), "{}", page.html);
            assert_eq!(page.values("input[type=checkbox][checked]", "name"), ["hex"]);
            assert_eq!(page.texts("nav a").len(), 5);
            assert!(!page.html.contains("order-1"), "{}", page.html);
        }
        running.release().await.unwrap();
    }

    async fn words_fit_their_numbers() {
        let (server, rowlock, db) = console(|console| console).await;
        let mut browser = server.browser();
        for (path, words) in [
            ("/locks", "No name is held, waited for or paused."),
            ("/locks?state=all", "No such names."),
            ("/records", "There are no records."),
            ("/records?scope=shop", "No such records."),
            ("/jobs", "There are no jobs."),
            ("/jobs?prefix=a", "No such jobs."),
        ] {
            browser.open(path).await.says(200, words);
        }
        let readers = [db.rowlock().await, db.rowlock().await, db.rowlock().await];
        let mut held = Vec::new();
        for (reader, others) in readers.iter().zip(["", "and 1 other", "and 2 others"]) {
            held.push(reader.rw_lock("catalogue").ttl(LONG).read().await.unwrap());
            let row = browser.open("/locks").await.text("td[data-label=Holder]");
            assert!(row.contains(others) && row.contains("other") != others.is_empty(), "{row}");
        }
        let paid = attempt(&rowlock, "order-1").await;
        paid.step("charge", async { Ok::<_, rowlock::Error>(7) }).await.unwrap();
        let record = format!("/record?scope={}&key={}", hex::encode("shop"), hex::encode("order-1"));
        browser.open(&record).await.says(200, "hidden (1 byte)");
    }

    async fn who_may_look_only_has_no_column_for_actions() {
        let db = Db::new(Engine::Sqlite).await;
        let rowlock = db.rowlock().await;
        let server = Server::of(Console::new(&rowlock, |_| Access::Read).router()).await;
        let _held = rowlock.lock("ledger").in_session().acquire().await.unwrap();
        for path in ["/locks", "/sessions"] {
            let page = server.browser().open(path).await;
            assert_eq!(page.texts("tbody tr").len(), 1, "{path}");
            assert!(!page.html.contains("Action"), "{path}: {}", page.html);
        }
    }
}
