//! Where a page leads: its title, its menu, and the links out of it.

use std::time::Duration;

use axum::http::request::Parts;
use reqwest::Method;
use rowlock::Engine;
use rowlock_console::{Access, Console, Visitor};
use rowlock_test::Db;

use crate::browser::Browser;
use crate::server::{Server, attempt, console, over_a_socket};

const LONG: Duration = Duration::from_mins(10);

const TOKEN: &str = "a secret of more than 20 characters";

/// A console with a token, and a browser that has none.
async fn with_token() -> (Server, Browser, Db) {
    let db = Db::new(Engine::Sqlite).await;
    let rowlock = db.rowlock().await;
    let access = |parts: &Parts| match parts.extensions.get::<Visitor>() {
        Some(visitor) => Access::Act {
            who: visitor.name.clone(),
        },
        None => Access::None,
    };
    let console = Console::new(&rowlock, access).token(TOKEN).router();
    let server = Server::of(axum::Router::new().nest("/shop", console)).await;
    let browser = server.browser();
    (server, browser, db)
}

fn location(page: &crate::browser::Page) -> &str {
    assert_eq!(page.status, 303, "{}", page.html);
    page.headers["location"].to_str().unwrap()
}

over_a_socket! {
    async fn a_page_is_called_by_its_name() {
        let (server, rowlock, _db) = console(|console| console).await;
        let mut browser = server.browser();
        let _lock = rowlock.lock("stock:42").ttl(LONG).acquire().await.unwrap();
        let _hostile = rowlock.lock("a\u{202e}b</title>").ttl(LONG).acquire().await.unwrap();
        let _permit = rowlock.semaphore("exports", 3).ttl(LONG).acquire().await.unwrap();
        let _read = rowlock.rw_lock("catalogue").ttl(LONG).read().await.unwrap();
        let _running = attempt(&rowlock, "order-1").await;
        let _bytes = attempt(&rowlock, [0xff]).await;
        let locks = browser.open("/locks").await;
        let records = browser.open("/records").await;
        for (list, link, name, kind) in [
            (&locks, "stock:42", "stock:42", "Lock"),
            (&locks, "exports", "exports", "Semaphore of 3"),
            (&locks, "catalogue", "catalogue", "Read/write lock"),
            (&locks, "a\\u{202e}b</title>", "a\\u{202e}b</title>", "Lock"),
            (&records, "order-1", "shop / order-1", "Record"),
            (&records, "0xff", "shop / 0xff", "Record"),
        ] {
            let page = browser.open(&list.link(link)).await;
            assert_eq!(page.texts("title"), [format!("{name} – rowlock")]);
            assert_eq!(page.texts("h1"), [name]);
            assert_eq!(page.texts(".kind"), [kind], "{name}");
        }
        let page = browser.open("/lock?name=none").await;
        assert_eq!((page.texts("h1"), page.texts(".kind")), (vec!["none".into()], Vec::new()));
        assert_eq!(locks.texts("title"), ["Locks – rowlock"]);
    }

    async fn a_page_that_is_not_there_has_a_menu() {
        let (server, _rowlock, db) = console(|console| console).await;
        let mut browser = server.browser();
        let menu = browser.open("/").await.texts("nav a");
        db.execute("ALTER TABLE rowlock_session RENAME TO away").await;
        for (path, status, title) in [
            ("/none", 404, "Not found"),
            ("/lock?name=", 404, "Not found"),
            ("/act/none", 404, "Not found"),
            ("/act/end-session?id=00000000-0000-0000-0000-000000000000", 503, "Not available"),
        ] {
            let page = browser.get(path).await;
            assert_eq!((page.status, page.texts("h1")), (status, vec![title.to_owned()]), "{path}");
            assert_eq!(page.texts("title"), [format!("{title} – rowlock")]);
            assert_eq!(page.texts("nav a"), menu, "{path}");
        }
        let request = browser.request(Method::GET, "/").header("host", "evil.example");
        let foreign = browser.send(request).await;
        foreign.says(421, "--allow-host");
        assert_eq!(foreign.texts("a[href=\"/\"]"), [""; 0]);
    }

    async fn a_stranger_sees_no_menu() {
        let (_server, mut browser, _db) = with_token().await;
        for path in ["/shop/login", "/shop/none", "/shop/assets/none"] {
            assert_eq!(browser.get(path).await.texts("nav a"), [""; 0], "{path}");
        }
    }

    async fn each_page_leads_on() {
        let (server, rowlock, _db) = console(|console| console).await;
        let mut browser = server.browser();
        let _held = rowlock.lock("ledger").in_session().acquire().await.unwrap();
        let lock = browser.open("/lock?name=ledger").await;
        let session = lock.link("its session");
        let (page, id) = session.split_once('#').unwrap();
        let sessions = browser.open(page).await;
        assert_eq!(sessions.texts(&format!("tr[id=\"{id}\"]")).len(), 1, "{session}");

        let mut held = Vec::new();
        for number in 0..60 {
            let one = rowlock.lock(format!("n{number:02}")).ttl(LONG).acquire().await.unwrap();
            one.begin_run().await.unwrap();
            held.push(one);
        }
        for path in ["/locks?prefix=n&sort=age", "/jobs?prefix=n"] {
            let first = browser.open(path).await;
            assert!(!first.html.contains("First page"), "{path}");
            let second = browser.open(&first.link("Next page")).await;
            assert_eq!(second.link("First page"), path);
        }
    }

    async fn a_link_leads_to_its_page_after_the_login() {
        let (_server, mut browser, _db) = with_token().await;
        let path = "/shop/lock?name=a%26b%2F%2Fc%23";
        let form = browser.get(path).await;
        let login = location(&form).to_owned();
        let form = browser.open(&login).await.form();
        let wrong = browser.submit(&form.with("name", "Ann").with("token", "wrong")).await;
        wrong.says(403, "This is not the token");
        let right = wrong.form().with("name", "Ann").with("token", TOKEN);
        let page = browser.submit(&right).await;
        assert_eq!(location(&page), path);
        browser.follow(&page).await;
        // Who is logged in does not log in again.
        let page = browser.get(&login).await;
        assert_eq!(location(&page), path);
        assert_eq!(location(&browser.get("/shop/login").await), "/shop");
        // From another site, the browser sends no cookie: its next request, from this page, has it.
        let mut stranger = Browser::at(browser.address);
        let request = stranger.request(Method::GET, &login).header("sec-fetch-site", "cross-site");
        let page = stranger.send(request.header("sec-fetch-dest", "document")).await;
        let refresh = page.values("meta[http-equiv=refresh]", "content");
        assert_eq!(refresh, [format!("0; url={login}")]);
        let request = stranger.request(Method::GET, &login).header("sec-fetch-site", "same-origin");
        let page = stranger.send(request).await;
        assert_eq!(page.values("meta[http-equiv=refresh]", "content"), [""; 0]);
    }

    async fn a_login_leads_to_this_console_only() {
        let (_server, mut browser, _db) = with_token().await;
        let own = "/lock?name=a";
        for to in [
            "//evil.example/lock", "/\\evil.example", "\\\\evil.example", "https://evil.example/", "evil.example",
            "/lock\\..\\..", "/../other", "/locks/../../other", "/lock/..", "/%2e%2e/other", "/act/..", "/act/../..",
            "javascript:alert(1)", "/lock\r\nset-cookie: a=b", "/\t/evil.example", "/@evil.example", "/login", "/logout",
            "/assets/console.js", "/live/overview", "", "?", "/none", "lock?name=a", "/./lock", own,
        ] {
            let word: String = form_urlencoded::byte_serialize(to.as_bytes()).collect();
            let form = browser.open(&format!("/shop/login?to={word}")).await.form();
            let page = browser.submit(&form.with("name", "Ann").with("token", TOKEN)).await;
            let expected = if to == own { "/shop/lock?name=a" } else { "/shop" };
            assert_eq!(location(&page), expected, "{to}");
            browser.log_out();
            // The form may say something else than its page did.
            let page = browser.submit(&form.with("to", to).with("name", "Ann").with("token", TOKEN)).await;
            assert_eq!(location(&page), expected, "{to}");
            browser.log_out();
        }
        // What is in the query stays in the query.
        let form = browser.open("/shop/login?to=/locks?prefix=%250d%250a//evil%2523%3d").await.form();
        let page = browser.submit(&form.with("name", "Ann").with("token", TOKEN)).await;
        assert_eq!(location(&page), "/shop/locks?prefix=%0D%0A%2F%2Fevil%23%3D");
        let form = browser.open("/shop/logout").await;
        assert_eq!(form.link("Back"), "/shop");
    }
}
