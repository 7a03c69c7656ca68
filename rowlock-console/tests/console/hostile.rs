//! Names, holders, keys and messages that would like to be more than text.

use std::collections::BTreeSet;
use std::time::Duration;

use rowlock::{Begun, Fingerprint, Rowlock, Scope};
use rowlock_test::Db;
use scraper::{Html, Selector};

use crate::browser::{Browser, Page};
use crate::server::{console, no_answer, over_a_socket};

const LONG: Duration = Duration::from_mins(10);

/// Texts that break out of a text, an attribute, an address, a comment or a script, or that a reader cannot see.
const TEXTS: [&str; 16] = [
    "<script>alert(1)</script>",
    "\"><img src=x onerror=alert(1)>",
    "' onmouseover='alert(1)",
    "</title></textarea></svg></select><b>",
    "<!--",
    "]]>",
    "javascript:alert(1)",
    "&lt;b&gt;&amp;&#60;",
    "../../etc?a=b&c=d#e%00%zz",
    "\u{202e}gnp.exe",
    "שלום \u{2067}x",
    "a\tb\nc\u{1b}[31m\u{7f}",
    "\u{200b}\u{feff}\u{ad}",
    "${7*7}{{7*7}}",
    "é\u{301}\u{1f512}",
    "x\u{85}y\u{2028}z",
];

/// Names that look the same where a page shows them as they are.
const ALIKE: [&str; 11] = [
    "look alike",
    "look  alike",
    " look alike",
    "look alike ",
    "look\u{a0}alike",
    "look\u{2003}alike",
    "look alike\u{34f}",
    "look alike\u{17b4}",
    "look alike\u{fe0f}",
    "look alike\u{3164}",
    "look alike\u{2800}",
];

/// Elements and attributes that this console's pages have.
const ELEMENTS: &str = "a bdi body button code dd div dl dt fieldset form h1 h2 h3 head header html input label \
                        legend li link main meta nav noscript option p path rect script section select span \
                        strong svg table tbody td textarea th thead time title tr ul";
const ATTRIBUTES: &str = "action aria-current aria-label aria-labelledby autocomplete charset checked class content d \
                          data-key data-label data-live datetime defer height hidden href id inputmode lang maxlength \
                          method name rel required role rows scope selected src tabindex title type value viewbox \
                          viewBox width x y";

async fn fill(rowlock: &Rowlock) {
    for text in TEXTS {
        let held = rowlock.lock(text).ttl(LONG).acquire().await.unwrap();
        held.begin_run().await.unwrap();
        held.end_run(false, text).await.unwrap();
        held.begin_run().await.unwrap();
        // (The leases stay: their rows are what is shown.)
        std::mem::forget(held);
        let key = Scope(text).key(text);
        let begun = rowlock
            .idempotency()
            .begin(key, Fingerprint::of(text))
            .await;
        let Ok(Begun::New(attempt)) = begun else {
            panic!("it is new")
        };
        attempt
            .step(text, async { Ok::<_, rowlock::Error>(text.to_owned()) })
            .await
            .unwrap();
        let step = format!("{text}2");
        attempt.step_once(&step, no_answer()).await.unwrap_err();
    }
}

/// Nothing in a page is an element, an attribute or a link of somebody else's.
fn check(path: &str, html: &str) {
    let elements: BTreeSet<&str> = ELEMENTS.split(' ').collect();
    let attributes: BTreeSet<&str> = ATTRIBUTES.split(' ').collect();
    let hidden = |c: char| {
        (c.is_control() && c != '\n') || "\u{202e}\u{2067}\u{200b}\u{feff}\u{2028}".contains(c)
    };
    // (The values of fields are sent back as they are, and addresses have them in escapes.)
    let page = Html::parse_document(html);
    for element in page.select(&Selector::parse("*").unwrap()) {
        let name = element.value().name();
        assert!(elements.contains(name), "{path}: <{name}>");
        for (attribute, value) in element.value().attrs() {
            assert!(
                attributes.contains(attribute),
                "{path}: <{name} {attribute}>"
            );
            if matches!(attribute, "href" | "src" | "action" | "data-live") {
                let is_ours =
                    value.starts_with('/') && !value.starts_with("//") || value == "#content";
                assert!(is_ours && value.is_ascii(), "{path}: {attribute}={value}");
            }
        }
        let is_script = name == "script";
        assert!(!is_script || element.inner_html().is_empty(), "{path}");
    }
    let texts = page.root_element().text();
    for text in texts {
        assert!(!text.contains(hidden), "{path}: {text:?}");
    }
}

/// A text as the page shows it.
fn shown(text: &str) -> String {
    let is_escaped =
        |c: char| c.is_control() || "\u{202e}\u{2067}\u{200b}\u{feff}\u{ad}\u{2028}".contains(c);
    text.chars()
        .map(|c| {
            if is_escaped(c) {
                c.escape_default().to_string()
            } else {
                c.to_string()
            }
        })
        .collect()
}

async fn all_pages(browser: &mut Browser) -> Vec<String> {
    let mut todo: Vec<String> = ["/", "/locks?state=all", "/jobs", "/sessions", "/records"]
        .map(str::to_owned)
        .to_vec();
    let (mut seen, mut pages) = (BTreeSet::new(), Vec::new());
    while let Some(path) = todo.pop() {
        if !seen.insert(path.clone()) {
            continue;
        }
        let page = browser.open(&path).await;
        check(&path, &page.html);
        let links = page.values("main a", "href");
        todo.extend(links.into_iter().filter(|href| href != "/"));
        pages.push(page.html);
    }
    pages
}

async fn hostile() -> (crate::server::Server, Rowlock, Db) {
    let (server, rowlock, db) = console(|console| console.show_outcomes(true)).await;
    fill(&rowlock).await;
    (server, rowlock, db)
}

over_a_socket! {
    async fn what_others_have_written_is_text() {
        let (server, _rowlock, db) = hostile().await;
        for text in TEXTS {
            let holder: String = text.chars().map(|c| format!("char({})", c as u32)).collect::<Vec<_>>().join(" || ");
            let name = db.bytes(text);
            db.execute(&format!("UPDATE rowlock_lock SET holder = {holder} WHERE name = {name}")).await;
        }
        let mut browser = server.browser();
        let pages = all_pages(&mut browser).await;
        assert!(pages.len() > 4 * TEXTS.len(), "{} pages", pages.len());
        let locks = browser.open("/locks").await;
        let bdi = Selector::parse("bdi").unwrap();
        let html = Html::parse_document(&locks.html);
        let texts: Vec<String> = html.select(&bdi).map(|bdi| bdi.text().collect()).collect();
        for text in TEXTS {
            let times = texts.iter().filter(|found| **found == shown(text)).count();
            assert_eq!(times, 2, "a name and a holder: {text:?} in {texts:?}");
        }
    }

    /// A name comes back from its address and its forms as it was.
    async fn an_action_is_done_to_the_name_that_was_shown() {
        let (server, rowlock, _db) = hostile().await;
        let mut browser = server.browser();
        for number in 1..=TEXTS.len() {
            let locks = browser.open("/locks").await;
            let page = browser.open(&locks.link("Free it")).await;
            let form = page.form().with("reason", "<script>\"'&");
            let sure = browser.submit(&form).await;
            check("sure", &sure.html);
            assert_eq!(browser.submit(&sure.form()).await.status, 303);
            assert_eq!(rowlock.admin().list().await.unwrap().len(), TEXTS.len() - number);
        }
        for (number, info) in rowlock.idempotency().list_undecided().await.unwrap().into_iter().enumerate() {
            let scope = hex::encode(info.record.scope());
            let path = format!("/act/resolve?scope={scope}&key={}", hex::encode(info.record.key()));
            let form = browser.open(&path).await.form().with("happened", "no").with("reason", "x");
            let form = browser.submit(&form).await.form();
            assert_eq!(browser.submit(&form).await.status, 303);
            let left = rowlock.idempotency().list_undecided().await.unwrap();
            assert_eq!(left.len(), TEXTS.len() - 1 - number);
        }
    }

    /// Also on the page that asks whether one is sure.
    async fn names_that_differ_look_different() {
        let (server, rowlock, _db) = console(|console| console).await;
        let mut held = Vec::new();
        for name in ALIKE {
            held.push(rowlock.lock(name).ttl(LONG).acquire().await.unwrap());
        }
        let mut browser = server.browser();
        let looks = |page: &Page, selector: &str| {
            let texts = page.texts(selector);
            assert!(texts.iter().all(|text| text.is_ascii()), "{texts:?}");
            texts
        };
        let locks = browser.open("/locks").await;
        // (`texts` has a text as a browser shows it: with single spaces, and none around it.)
        let names: BTreeSet<String> = looks(&locks, "td[data-label=Name] a").into_iter().collect();
        assert_eq!(names.len(), ALIKE.len(), "{names:?}");
        let mut asked = BTreeSet::new();
        for path in locks.values("main a.act", "href").iter().filter(|path| path.contains("/free?")) {
            let form = browser.open(path).await.form().with("reason", "x");
            let sure = browser.submit(&form).await;
            asked.extend(looks(&sure, "main strong bdi"));
        }
        assert_eq!(asked, names);
    }

    async fn what_is_asked_for_is_text_too() {
        let (server, _rowlock, _db) = console(|console| console).await;
        let mut browser = server.browser();
        for text in TEXTS {
            let word: String = form_urlencoded::byte_serialize(text.as_bytes()).collect();
            for path in [
                format!("/locks?prefix={word}"),
                format!("/jobs?prefix={word}&from={word}"),
                format!("/records?scope={word}&key={word}"),
                format!("/lock?name={word}"),
                format!("/locks?state={word}"),
                format!("/act/free?name={word}"),
                format!("/act/{word}"),
                format!("/locks?done={word}"),
            ] {
                let page = browser.get(&path).await;
                let is_asked = path.contains("prefix") || path.contains("/records");
                if is_asked {
                    // It stands in the filter, as it was.
                    assert!(page.values("input", "value").contains(&text.to_owned()), "{path}");
                }
                check(&path, &page.html);
            }
        }
    }
}
