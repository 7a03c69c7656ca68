//! Pages that change: what they show, what they cost, and that they outlive the database.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::http::request::Parts;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::BoxStream;
use reqwest::{Method, RequestBuilder};
use rowlock::{Engine, Rowlock};
use rowlock_console::{Access, Console};
use rowlock_test::{
    Db, Killable, Proxy, connected, eventually, on_every_engine, patience, through_proxy, waiters,
};

use crate::access::{TOKEN, by_header, log_in};
use crate::browser::Browser;
use crate::server::{Server, attempt, of_ann, over_a_socket};

const LONG: Duration = Duration::from_mins(10);

/// Who looks at a page, until this is dropped.
struct Eye {
    bytes: BoxStream<'static, reqwest::Result<axum::body::Bytes>>,
    buffer: String,
}

/// An event of the stream: its name, and the text in it.
type Seen = (String, String);

impl Eye {
    async fn at(address: SocketAddr, page: &str) -> Self {
        Self::of(Browser::at(address).request(Method::GET, &format!("/live{page}"))).await
    }

    async fn of(request: RequestBuilder) -> Self {
        let response = request.send().await.unwrap();
        assert_eq!(response.status().as_u16(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self {
            bytes: response.bytes_stream().boxed(),
            buffer: String::new(),
        }
    }

    async fn next(&mut self) -> Seen {
        loop {
            if let Some((event, rest)) = self.buffer.split_once("\n\n") {
                let line = |name: &str| {
                    event
                        .lines()
                        .find_map(|line| line.strip_prefix(name))
                        .unwrap()
                        .trim()
                        .to_owned()
                };
                let seen = (
                    line("event:"),
                    serde_json::from_str(&line("data:")).unwrap(),
                );
                self.buffer = rest.into();
                return seen;
            }
            let chunk = tokio::time::timeout(patience(), self.bytes.next())
                .await
                .expect("an event comes");
            self.buffer.push_str(
                std::str::from_utf8(&chunk.expect("the stream goes on").unwrap()).unwrap(),
            );
        }
    }

    /// What comes until the console ends the stream.
    async fn rest(mut self) -> String {
        let rest = async {
            while let Some(chunk) = self.bytes.next().await {
                self.buffer += std::str::from_utf8(&chunk.unwrap()).unwrap();
            }
        };
        let ended = tokio::time::timeout(patience(), rest).await;
        ended.expect("the stream ends");
        self.buffer
    }

    async fn until(&mut self, what: impl Fn(&Seen) -> bool) -> Seen {
        loop {
            let seen = self.next().await;
            if what(&seen) {
                return seen;
            }
        }
    }

    /// The requests that the console sends to the database during five frames.
    async fn five_frames(&mut self, proxy: &Proxy) -> u32 {
        self.next().await;
        let before = proxy.requests();
        for _ in 0..5 {
            self.next().await;
        }
        proxy.requests() - before
    }
}

async fn through(db: &Db) -> (Proxy, Rowlock, Server) {
    let (proxy, url) = through_proxy(db).await;
    let rowlock = Rowlock::builder()
        .clean_every(None)
        // Two slow operations at a time, as many as the overview has: a third connection would have to learn the
        // statements.
        .max_connections(5)
        .connect(&url)
        .await
        .unwrap();
    let server = Server::of(of_ann(&rowlock).router()).await;
    (proxy, rowlock, server)
}

on_every_engine! {
    async fn a_queue_moves_while_one_looks(db: &Db) {
        let rowlock = db.rowlock().await;
        let server = Server::of(of_ann(&rowlock).router()).await;
        let held = rowlock.lock("a").ttl(LONG).acquire().await.unwrap();
        let mut eye = Eye::at(server.address, "/lock?name=a").await;
        eye.until(|(event, html)| event == "fragment" && html.contains("Nobody waits for it")).await;
        let other = db.rowlock().await;
        let waiting = tokio::spawn({
            let lock = other.lock("a").ttl(LONG);
            async move { lock.acquire().await }
        });
        eventually("it waits", async || waiters(&rowlock, "a").await.len() == 1).await;
        eye.until(|(_, html)| html.contains("data-label=\"Waits for\"")).await;
        held.release().await.unwrap();
        let next = waiting.await.unwrap().unwrap();
        let fence = next.fence().to_string();
        eye.until(|(_, html)| html.contains(&fence) && html.contains("Nobody waits for it")).await;
    }
}

over_a_socket! {
    async fn two_who_look_cost_as_much_as_one() {
        let db = Db::new(Engine::Postgres).await;
        let (proxy, rowlock, server) = through(&db).await;
        // Its page changes every second.
        let _held = db.rowlock().await.lock("a").ttl(LONG).acquire().await.unwrap();
        let mut first = Eye::at(server.address, "/locks").await;
        let one = first.five_frames(&proxy).await;
        let mut others = Vec::new();
        for _ in 0..9 {
            let mut other = Eye::at(server.address, "/locks").await;
            other.next().await;
            others.push(other);
        }
        // (The ten read from a buffer: their number changes nothing.)
        let mut ten = first.five_frames(&proxy).await;
        // On a busy machine other requests of the client come between.
        for _ in 0..10 {
            if ten > one + 1 {
                ten = ten.min(first.five_frames(&proxy).await);
            }
        }
        assert!(one >= 5 && ten <= one + 1, "{one} requests for one, {ten} for ten");
        // Another page is another one.
        let mut jobs = Eye::at(server.address, "/overview").await;
        jobs.next().await;
        let both = first.five_frames(&proxy).await;
        assert!(both > ten, "{both} requests for two pages, {ten} for one");
        drop((others, jobs, rowlock));
    }

    /// The statements of docs/CONSOLE.md.
    async fn a_page_costs_what_the_documents_say() {
        let db = Db::new(Engine::Postgres).await;
        // All pages change every second.
        let client = db.rowlock().await;
        let held = client.lock("a").in_session().acquire().await.unwrap();
        held.begin_run().await.unwrap();
        client.admin().quarantine(LONG).await.unwrap();
        let pages = [
            ("/locks", 1),
            ("/sessions", 1),
            ("/jobs", 1),
            ("/lock?name=a", 4),
            ("/overview", 7),
        ];
        join_all(pages.map(async |(page, statements)| {
            let (proxy, _rowlock, server) = through(&db).await;
            // A renewal may be among them, a connection that is made, or a read that found no change.
            let mut requests = u32::MAX;
            for _ in 0..20 {
                // A stream ends after a minute.
                let mut eye = Eye::at(server.address, page).await;
                // The first frame reads the runs of the job, too.
                eye.next().await;
                requests = requests.min(eye.five_frames(&proxy).await);
                if requests / 5 <= statements {
                    break;
                }
            }
            assert_eq!(requests / 5, statements, "{page}: {requests}");
        }))
        .await;
    }

    /// Also where they are shown: a page has the begin of a long one.
    async fn the_page_of_a_record_does_not_read_the_results_of_its_steps() {
        const RESULT: usize = 500_000;
        let db = Db::new(Engine::Postgres).await;
        let (proxy, url) = through_proxy(&db).await;
        let rowlock = Rowlock::builder().clean_every(None).connect(&url).await.unwrap();
        let paid = attempt(&db.rowlock().await, "1").await;
        for step in ["one", "two", "three"] {
            let long = async { Ok::<_, rowlock::Error>("x".repeat(RESULT)) };
            paid.step(step, long).await.unwrap();
        }
        for shows in [false, true] {
            let console = of_ann(&rowlock).show_outcomes(shows);
            let server = Server::of(console.router()).await;
            let before = proxy.received();
            let page = server.browser().open("/record?scope=73686f70&key=31").await;
            assert!(page.html.contains(&format!("({} bytes)", RESULT + 2)), "{}", page.html);
            let read = proxy.received() - before;
            assert!(read < RESULT as u64, "{read} bytes");
        }
    }

    async fn nobody_who_looks_costs_nothing() {
        let db = Db::new(Engine::Postgres).await;
        let (proxy, _rowlock, server) = through(&db).await;
        let held = db.rowlock().await.lock("a").ttl(LONG).acquire().await.unwrap();
        let mut eye = Eye::at(server.address, "/locks").await;
        eye.next().await;
        drop(eye);
        // Another console, with viewers, tells the time.
        let other = db.rowlock().await;
        let clock = Server::of(of_ann(&other).router()).await;
        let mut clock = Eye::at(clock.address, "/locks").await;
        // (The last read may be on its way.)
        clock.five_frames(&proxy).await;
        assert_eq!(clock.five_frames(&proxy).await, 0);
        // And it begins again.
        let mut eye = Eye::at(server.address, "/locks").await;
        assert!(eye.five_frames(&proxy).await >= 5);
        held.release().await.unwrap();
    }

    async fn a_page_outlives_a_restart_of_the_database() {
        let killable = Killable::new(Engine::Postgres);
        let url = killable.start();
        let db = Db::on(Engine::Postgres, &url).await;
        let builder = Rowlock::builder().operation_timeout(Duration::from_secs(1));
        let rowlock = connected(&builder, &db.url).await;
        let server = Server::of(of_ann(&rowlock).router()).await;
        let mut eye = Eye::at(server.address, "/sessions").await;
        eye.until(|(event, _)| event == "fragment").await;
        killable.kill();
        let (_, why) = eye.until(|(event, _)| event == "away").await;
        assert!(why.starts_with("The database was not read: ") && why.contains("tries again"), "{why}");
        // Who comes meanwhile is told, too.
        let mut late = Eye::at(server.address, "/sessions").await;
        late.until(|(event, _)| event == "away").await;
        server.browser().get("/sessions").await.says(503, "The database was not read");
        killable.start();
        eye.until(|(event, _)| event == "fragment").await;
        late.until(|(event, _)| event == "fragment").await;
        server.browser().open("/sessions").await;
    }

    async fn there_is_a_bound_on_the_pages_that_are_read_at_a_time() {
        let (server, _db) = by_header().await;
        let mut browser = server.browser();
        let asking = |number: u32, user: u32| {
            let request = server.browser().request(Method::GET, &format!("/live/lock?name={number}"));
            request.header("x-user", format!("user {user}"))
        };
        let mut eyes = Vec::new();
        for number in 0..64 {
            if number == 16 {
                // One person takes a part of them only.
                browser.send(asking(16, 0)).await.says(503, "You look at 16 pages");
            }
            eyes.push(Eye::of(asking(number, number / 16)).await);
        }
        browser.send(asking(64, 4)).await.says(503, "Too many pages");
        // One of them may have many who look.
        eyes.push(Eye::of(asking(1, 4)).await);
        eyes.clear();
        for user in [0, 4] {
            eventually("there is room again", async || {
                asking(64 + user, user).send().await.unwrap().status().as_u16() == 200
            }).await;
        }
    }

    async fn who_may_look_no_more_sees_nothing_more() {
        let db = Db::new(Engine::Sqlite).await;
        let rowlock = db.rowlock().await;
        let may_look = Arc::new(AtomicBool::new(true));
        let access = {
            let may_look = Arc::clone(&may_look);
            move |_: &Parts| {
                if may_look.load(Ordering::Relaxed) {
                    Access::Read
                } else {
                    Access::None
                }
            }
        };
        let console = Console::new(&rowlock, access).token(TOKEN);
        let server = Server::of(console.router()).await;
        for way in ["a logout", "the hook"] {
            let mut browser = server.browser();
            log_in(&mut browser, TOKEN).await;
            let mut eye = Eye::of(browser.request(Method::GET, "/live/locks")).await;
            eye.next().await;
            if way == "a logout" {
                let form = browser.open("/logout").await.form();
                assert_eq!(browser.submit(&form).await.status, 303);
            } else {
                may_look.store(false, Ordering::Relaxed);
            }
            let name = format!("after {way}");
            let _held = rowlock.lock(&name).ttl(LONG).acquire().await.unwrap();
            let rest = eye.rest().await;
            assert!(!rest.contains(&name), "{way}");
        }
    }
}
