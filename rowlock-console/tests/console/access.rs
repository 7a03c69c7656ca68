//! Who may see the console, from where, and with which headers.

use std::collections::BTreeMap;

use axum::Router;
use axum::http::request::Parts;
use reqwest::Method;
use rowlock::Engine;
use rowlock_console::{Access, Console, Visitor};
use rowlock_test::Db;

use crate::browser::{Browser, Form, Page};
use crate::log;
use crate::server::{Server, console, over_a_socket};

pub(crate) const TOKEN: &str = "a secret of more than 20 characters";

/// The header `x-user` stands for an authentication in front of the console.
pub(crate) async fn by_header() -> (Server, Db) {
    let db = Db::new(Engine::Sqlite).await;
    let rowlock = db.rowlock().await;
    let access = |parts: &Parts| match parts.headers.get("x-user").map(|user| user.to_str()) {
        Some(Ok("reader")) => Access::Read,
        Some(Ok(user)) => Access::Act { who: user.into() },
        _ => Access::None,
    };
    let router = rowlock_console::router(&rowlock, access);
    (Server::of(router).await, db)
}

/// A console with a token.
async fn with_token() -> (Server, Db) {
    let db = Db::new(Engine::Sqlite).await;
    let rowlock = db.rowlock().await;
    let access = |parts: &Parts| {
        let visitor = parts.extensions.get::<Visitor>();
        visitor.map_or(Access::None, |visitor| Access::Act {
            who: visitor.name.clone(),
        })
    };
    let console = Console::new(&rowlock, access).token(TOKEN);
    (Server::of(console.router()).await, db)
}

pub(crate) async fn log_in(browser: &mut Browser, token: &str) -> Page {
    let form = browser.open("/login").await.form();
    let form = form.with("name", "Ann").with("token", token);
    browser.submit(&form).await
}

/// The cookie of the login: its name and its value.
fn login(browser: &Browser) -> Option<(String, String)> {
    let mut cookies = browser.cookies.iter();
    let login = cookies.find(|(name, _)| name.starts_with("rowlock_console_login_"))?;
    Some((login.0.clone(), login.1.clone()))
}

/// Every page and every action, with parameters that are well formed.
const PATHS: [&str; 19] = [
    "/",
    "/overview",
    "/locks",
    "/lock?name=a",
    "/sessions",
    "/jobs",
    "/records",
    "/record?scope=61&key=61",
    "/live/overview",
    "/act/free?name=a",
    "/act/capacity?name=a",
    "/act/forget?name=a",
    "/act/pause?name=a",
    "/act/resume?name=a",
    "/act/end-session?id=00000000-0000-0000-0000-000000000000",
    "/act/resolve?scope=61&key=61",
    "/act/reset?scope=61&key=61",
    "/act/quarantine",
    "/act/end-quarantine",
];

over_a_socket! {
    async fn who_may_see_nothing_gets_nothing() {
        let (server, _db) = by_header().await;
        let mut browser = server.browser();
        for path in PATHS {
            browser.get(path).await.says(403, "You may not see this console");
        }
    }

    async fn who_may_read_cannot_act() {
        let (server, db) = by_header().await;
        let held = db.rowlock().await.lock("a").acquire().await.unwrap();
        let mut browser = server.browser();
        // What somebody else's page had in it.
        let as_user = |browser: &Browser, method, path: &str, user: &str| {
            browser.request(method, path).header("x-user", user.to_owned())
        };
        let request = as_user(&browser, Method::GET, "/act/free?name=a", "ann");
        let form = browser.send(request).await.form().with("reason", "x");
        let request = browser.posting(&form).header("x-user", "ann");
        let form = browser.send(request).await.form();
        for path in PATHS {
            let request = as_user(&browser, Method::GET, path, "reader");
            if path.starts_with("/live") {
                continue;
            }
            let page = browser.send(request).await;
            if path.starts_with("/act") {
                page.says(403, "You may look only");
            } else {
                assert_eq!((page.status, page.texts("a.act").len()), (200, 0), "{path}");
            }
        }
        let request = browser.posting(&form).header("x-user", "reader");
        browser.send(request).await.says(403, "You may look only");
        assert!(held.is_held());
        // The form is another person's.
        let request = browser.posting(&form).header("x-user", "bob");
        browser.send(request).await.says(403, "does not come from this console");
        let request = browser.posting(&form).header("x-user", "ann");
        assert_eq!(browser.send(request).await.status, 303);
    }

    async fn a_form_needs_its_token_its_session_and_its_site() {
        let (server, rowlock, _db) = console(|console| console).await;
        let held = rowlock.lock("a").acquire().await.unwrap();
        let mut browser = server.browser();
        let form = browser.open("/act/free?name=a").await.form();
        let form = browser.submit(&form.with("reason", "x")).await.form();
        let other = server.browser().open("/act/free?name=a").await.form();
        for token in ["", "00", &"0".repeat(64), &other.fields["form"]] {
            browser.submit(&form.with("form", token)).await.says(403, "does not come from this console");
        }
        server.browser().submit(&form).await.says(403, "does not come from this console");
        for (name, value) in [
            ("origin", "http://evil.example"),
            ("origin", "http://127.0.0.1:1"),
            ("origin", "nonsense"),
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-site", "same-site"),
            ("sec-fetch-site", "none"),
        ] {
            let request = browser.posting(&form).header(name, value);
            browser.send(request).await.says(403, "does not come from this console");
        }
        let as_text = browser.request(Method::POST, &form.action).header("content-type", "text/plain");
        let as_text = as_text.body(crate::browser::encoded(&form.fields));
        browser.send(as_text).await.says(415, "A form is expected");
        assert!(held.is_held());
        // As a browser sends it: this console's policy makes `Origin` null.
        let request = browser.posting(&form).header("sec-fetch-site", "same-origin").header("origin", "null");
        assert_eq!(browser.send(request).await.status, 303);
        assert!(!held.is_held());
    }

    async fn a_form_from_its_own_origin_is_taken() {
        let (server, rowlock, _db) = console(|console| console).await;
        let _held = rowlock.lock("a").acquire().await.unwrap();
        let mut browser = server.browser();
        let form = browser.open("/act/free?name=a").await.form();
        let request = browser.posting(&form.with("reason", "x"));
        let request = request.header("origin", format!("http://{}", server.address));
        browser.send(request).await.says(200, "Are you sure?");
    }

    async fn other_hosts_are_refused() {
        let (server, _rowlock, _db) = console(|console| console.allow_host("Ops.Example")).await;
        let mut browser = server.browser();
        for (host, status) in [
            ("localhost", 200),
            ("LocalHost:8090", 200),
            ("127.0.0.1", 200),
            ("[::1]:8090", 200),
            ("10.0.0.7:80", 200),
            ("ops.example", 200),
            ("OPS.example:443", 200),
            ("evil.example", 421),
            ("ops.example.evil.example", 421),
            ("localhost.evil.example", 421),
            ("127.0.0.1.evil.example", 421),
            ("localhost@evil.example", 421),
        ] {
            for path in ["/", "/locks", "/login", "/assets/console.js", "/none"] {
                let request = browser.request(Method::GET, path).header("host", host);
                let got = browser.send(request).await.status;
                assert!(got == status || (status == 200 && matches!(got, 303 | 404)), "{host}{path}: {got}");
            }
        }
    }

    /// An image, a frame, or a script of another site's page: each costs statements.
    async fn a_page_of_another_site_asks_for_nothing() {
        let (server, _rowlock, _db) = console(|console| console).await;
        let mut browser = server.browser();
        let asking = |browser: &Browser, path: &str, (site, mode, of): (&str, &str, &str)| {
            let request = browser.request(Method::GET, path).header("sec-fetch-site", site.to_owned());
            request.header("sec-fetch-mode", mode.to_owned()).header("sec-fetch-dest", of.to_owned())
        };
        for path in PATHS {
            for foreign in [
                ("cross-site", "no-cors", "empty"),
                ("same-site", "cors", "empty"),
                ("cross-site", "no-cors", "image"),
                ("same-site", "navigate", "iframe"),
            ] {
                let request = asking(&browser, path, foreign);
                browser.send(request).await.says(403, "a page of another site");
            }
            if path.starts_with("/live") {
                continue;
            }
            for ours in [
                ("same-origin", "cors", "empty"),
                ("none", "navigate", "document"),
                // A link.
                ("cross-site", "navigate", "document"),
            ] {
                let request = asking(&browser, path, ours);
                assert_eq!(browser.send(request).await.status, 200, "{path} {ours:?}");
            }
        }
    }

    async fn every_answer_has_the_headers() {
        let (server, _rowlock, _db) = console(|console| console).await;
        let mut browser = server.browser();
        let mut answers = Vec::new();
        let more = ["/none", "/none/none", "/assets/console.css", "/assets/none", "/logout", "/lock?name="];
        for path in PATHS.iter().chain(&more).filter(|path| !path.starts_with("/live")) {
            answers.push(browser.get(path).await);
        }
        let form = Form { action: "/act/free".into(), fields: BTreeMap::new() };
        answers.push(browser.submit(&form).await);
        let put = browser.request(Method::PUT, "/locks");
        answers.push(browser.send(put).await);
        let foreign = browser.request(Method::GET, "/").header("host", "evil.example");
        answers.push(browser.send(foreign).await);
        let live = browser.request(Method::GET, "/live/sessions").send().await.unwrap();
        let all = answers.iter().map(|page| &page.headers).chain([live.headers()]);
        for headers in all {
            let header = |name: &str| headers.get(name).map_or("", |value| value.to_str().unwrap());
            let policy = header("content-security-policy");
            for part in ["default-src 'none'", "frame-ancestors 'none'", "form-action 'self'", "base-uri 'none'"] {
                assert!(policy.contains(part), "{policy}");
            }
            assert!(!policy.contains("unsafe"), "{policy}");
            assert_eq!(header("x-content-type-options"), "nosniff");
            assert_eq!(header("referrer-policy"), "no-referrer");
            assert_eq!(header("cache-control"), "no-store");
            assert_eq!(header("x-frame-options"), "DENY");
        }
    }

    async fn nothing_in_a_page_is_inline() {
        let (server, rowlock, _db) = console(|console| console).await;
        let held = rowlock.lock("a").acquire().await.unwrap();
        held.begin_run().await.unwrap();
        let mut browser = server.browser();
        for path in PATHS.iter().filter(|path| !path.starts_with("/live")) {
            let page = browser.open(path).await;
            assert_eq!(page.text("script, style"), "", "{path}");
            let html = scraper::Html::parse_document(&page.html);
            let all = scraper::Selector::parse("*").unwrap();
            for element in html.select(&all) {
                for (name, value) in element.value().attrs() {
                    let is_inline = name.starts_with("on") || name == "style" || value.starts_with("javascript:");
                    assert!(!is_inline, "{path}: {name}={value}");
                }
            }
        }
    }

    async fn a_console_with_a_token_asks_for_it() {
        log::keep();
        let (server, _db) = with_token().await;
        let mut browser = server.browser();
        for path in PATHS {
            let page = browser.get(path).await;
            let login = if path == "/" || path.starts_with("/live") { "/login" } else { "/login?to=%2F" };
            assert_eq!(page.status, 303, "{path}");
            let to = page.headers["location"].to_str().unwrap();
            assert!(to.starts_with(login) && to.contains('?') == login.contains('?'), "{path}: {to}");
        }
        for wrong in ["", "a secret", &format!("{TOKEN}x")] {
            log_in(&mut browser, wrong).await.says(403, "This is not the token");
        }
        assert_eq!(login(&browser), None);
        let form = browser.open("/login").await.form();
        let swapped = form.with("token", "Ann").with("name", TOKEN);
        browser.submit(&swapped).await.says(403, "This is not the token");
        let nameless = form.with("token", TOKEN).with("name", " ");
        browser.submit(&nameless).await.says(422, "Give your name");
        let forged = form.with("token", TOKEN).with("name", "Ann").with("form", "00");
        browser.submit(&forged).await.says(403, "does not come from this console");

        let page = log_in(&mut browser, TOKEN).await;
        let page = browser.follow(&page).await;
        assert!(page.text("header").contains("you act as Ann"), "{}", page.html);
        let (name, cookie) = login(&browser).unwrap();
        assert!(!cookie.contains(TOKEN) && cookie.len() == 64);
        // Another login has another cookie; a guess has none.
        let mut other = server.browser();
        log_in(&mut other, TOKEN).await;
        assert_ne!(login(&other).unwrap(), (name.clone(), cookie.clone()));
        let mut guess = server.browser();
        guess.cookies.insert(name.clone(), "0".repeat(64));
        assert_eq!(guess.get("/").await.status, 303);

        let form = browser.open("/logout").await.form();
        assert_eq!(browser.submit(&form).await.status, 303);
        browser.cookies.insert(name, cookie);
        assert_eq!(browser.get("/").await.status, 303, "the login has ended, and not its cookie alone");
        other.open("/").await;
        for line in log::with("") {
            assert!(!line.contains(TOKEN), "{line}");
        }
    }

    async fn a_cookie_is_for_encrypted_connections_where_the_page_is() {
        let (server, _rowlock, _db) = console(|console| console).await;
        let browser = server.browser();
        for (scheme, is_secure) in [("https", true), ("http", false)] {
            let request = browser.request(Method::GET, "/act/quarantine").header("x-forwarded-proto", scheme);
            let response = request.send().await.unwrap();
            let cookie = response.headers()["set-cookie"].to_str().unwrap();
            assert_eq!(cookie.contains("; Secure"), is_secure, "{cookie}");
        }
    }

    /// A browser sends the cookies of a host to all its ports.
    async fn two_consoles_on_one_host_keep_their_logins() {
        let ((first, _one), (second, _two)) = (with_token().await, with_token().await);
        let mut browser = first.browser();
        for server in [&first, &second] {
            browser.address = server.address;
            assert_eq!(log_in(&mut browser, TOKEN).await.status, 303);
        }
        for server in [&first, &second] {
            browser.address = server.address;
            browser.open("/locks").await;
        }
        let form = browser.open("/logout").await.form();
        browser.submit(&form).await;
        browser.address = first.address;
        let form = browser.open("/act/quarantine").await.form();
        let form = form.with("time", "10m").with("reason", "x");
        browser.submit(&form).await.says(200, "Are you sure?");
    }

    async fn two_consoles_have_their_own_sessions() {
        let db = Db::new(Engine::Sqlite).await;
        let rowlock = db.rowlock().await;
        let console = |token: &str| Console::new(&rowlock, |_| Access::Read).token(token).router();
        let app = Router::new().nest("/a", console(TOKEN)).nest("/b", console("another secret, as long"));
        let server = Server::of(app).await;
        let mut browser = server.browser();
        let form = browser.open("/a/login").await.form();
        assert_eq!(form.action, "/a/login");
        let page = browser.submit(&form.with("name", "Ann").with("token", TOKEN)).await;
        assert_eq!(page.headers["location"], "/a");
        assert!(page.headers["set-cookie"].to_str().unwrap().contains("Path=/a;"));
        browser.open("/a").await;
        assert_eq!(browser.get("/b").await.status, 303);
    }
}
