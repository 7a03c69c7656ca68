//! Where things stand on a page, with long names and on a phone.

use std::time::Duration;

use rowlock::{Begun, Fingerprint, Scope};
use serde_json::json;

use crate::commands::Place;
use crate::images::fill;
use crate::window::Window;

const LONG: Duration = Duration::from_mins(10);

/// A name, a holder, a message and a key without a place to break the line.
async fn fill_with_long_names(place: &Place) -> (String, String) {
    let name = format!("tenant/{}", "0123456789abcdef".repeat(15));
    let client = place.client(&"w".repeat(200)).await;
    let held = client.lock(&name).ttl(LONG).acquire().await.unwrap();
    held.begin_run().await.unwrap();
    held.end_run(false, &"nopaper".repeat(100)).await.unwrap();
    let why = "because".repeat(30);
    client.admin().pause(&name, None, &why).await.unwrap();
    std::mem::forget(held);
    let session = client.lock("books").in_session().acquire().await.unwrap();
    std::mem::forget(session);
    let reader = client.rw_lock("catalogue").ttl(LONG).read().await.unwrap();
    std::mem::forget(reader);
    let key = "k".repeat(250);
    for (scope, key) in [
        ("shop".repeat(50).into_bytes(), key.clone().into_bytes()),
        (vec![0xff; 200], vec![0xfe; 250]),
    ] {
        let begun = client.idempotency();
        let begun = begun
            .begin(Scope(scope).key(key), Fingerprint::of("1"))
            .await;
        let Ok(Begun::New(attempt)) = begun else {
            panic!("it is new")
        };
        std::mem::forget(attempt);
    }
    std::mem::forget(client);
    let scope: String = "73686f70".repeat(50);
    (name, format!("scope={scope}&key={}", "6b".repeat(250)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_names_fit_on_every_page() {
    let place = Place::new();
    let _shop = fill(&place).await;
    let (name, record) = fill_with_long_names(&place).await;
    let (_console, address) = place.console("127.0.0.1:0");
    let window = Window::at(&address).await;
    let pages = [
        "/".to_owned(),
        "/locks".into(),
        format!("/lock?name={name}"),
        "/sessions".into(),
        "/jobs".into(),
        "/records".into(),
        format!("/record?{record}"),
        format!("/act/free?name={name}"),
        format!("/act/pause?name={name}"),
    ];
    // Between two of these widths tables become cards.
    for width in [1200, 1030, 900, 390] {
        window.prefers("light", width, 800).await;
        for page in &pages {
            window.open(page).await;
            let over =
                "const page = document.documentElement; return page.scrollWidth - page.clientWidth";
            assert_eq!(window.run(over).await, json!(0), "{page} at {width} pixels");
            // In a table, a long text breaks its own lines only: what it stands beside stays in one line.
            let broken = window.run(BROKEN).await;
            assert!(
                width < 1030 || broken == json!([]),
                "{page} at {width} pixels: {broken}"
            );
        }
    }
    window.close().await;
}

/// The texts of tables, except those that somebody has chosen, that are in more than one line.
const BROKEN: &str = "
    const broken = [];
    for (const cell of document.querySelectorAll('th, td')) {
        const texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
        while (texts.nextNode()) {
            const text = texts.currentNode;
            if (text.parentElement.closest('bdi, .escape')) continue;
            const range = document.createRange();
            range.selectNodeContents(text);
            const lines = new Set([...range.getClientRects()].map((line) => Math.round(line.top)));
            if (lines.size > 1) broken.push(text.data);
        }
    }
    return broken;";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fields_and_rows_are_aligned() {
    let place = Place::new();
    let _shop = fill(&place).await;
    let (_console, address) = place.console("127.0.0.1:0");
    let window = Window::at(&address).await;
    window.prefers("light", 1200, 800).await;
    let edges = "return [...document.querySelectorAll('.filter input:not([type=checkbox]), .filter select, \
                 .filter button')].map((one) => one.getBoundingClientRect())
                 .map((one) => [Math.round(one.top), Math.round(one.bottom)])";
    for page in ["/locks", "/jobs", "/records"] {
        window.open(page).await;
        let edges = window.run(edges).await;
        let edges = edges.as_array().unwrap();
        assert!(
            edges.iter().all(|one| *one == edges[0]),
            "{page}: {edges:?}"
        );
    }
    // A chart makes no row higher than a line of text does.
    window.open("/jobs").await;
    let height = "return document.querySelector('td .runs').getBoundingClientRect().height";
    let height = window.run(height).await.as_f64().unwrap();
    assert!(height < 24.0, "{height}");
    let starts = "return ['main h1', 'main fieldset'].map((one) => document.querySelector(one))
                  .map((one) => one.getBoundingClientRect().left)";
    window
        .open("/act/resolve?scope=73686f70&key=6f726465722d3137")
        .await;
    let starts = window.run(starts).await;
    assert_eq!(starts[0], starts[1]);
    window.close().await;
}
