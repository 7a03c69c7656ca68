//! axe-core finds nothing serious on any page, in light and in dark colours, on a screen and on a phone.

use std::process::Command;
use std::time::Duration;

use rowlock_test::patience;
use serde_json::Value;

use crate::commands::Place;
use crate::images::fill;
use crate::window::Window;

const CHECK: &str = "
    const done = arguments[arguments.length - 1];
    axe.run().then(
        (found) => done(found.violations.map((one) =>
            [one.impact, one.id, one.nodes.map((node) => node.html + ' ' + node.failureSummary).join('; ')])),
        (error) => done([['critical', 'error', String(error)]]),
    );";

fn axe() -> String {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../docker/servers.sh");
    let output = Command::new(script).arg("axe").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let path = String::from_utf8(output.stdout).unwrap();
    std::fs::read_to_string(path.trim()).unwrap()
}

async fn serious(window: &Window, axe: &str) -> Vec<Value> {
    window.run(axe).await;
    let found = window
        .driver
        .execute_async(CHECK, Vec::new())
        .await
        .unwrap();
    let mut found: Vec<Value> = serde_json::from_value(found).unwrap();
    found.retain(|one| matches!(one[0].as_str(), Some("serious" | "critical") | None));
    found
}

/// The page is as wide as the screen.
async fn fits(window: &Window) -> bool {
    let width = "return document.documentElement.scrollWidth <= window.innerWidth";
    window.run(width).await == true
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_page_is_accessible_in_light_and_dark_and_on_a_phone() {
    let axe = axe();
    let place = Place::new();
    let shop = fill(&place).await;
    let (_console, address) = place.console("127.0.0.1:0");
    let window = Window::at(&address).await;
    window.scripts_may_take(patience()).await;
    // The record order-17 of shop.
    let order = "scope=73686f70&key=6f726465722d3137";
    let pages = [
        "/".to_owned(),
        "/locks".into(),
        "/lock?name=stock:42".into(),
        "/lock?name=report".into(),
        "/sessions".into(),
        "/jobs".into(),
        "/records".into(),
        format!("/record?{order}"),
        "/act/free?name=stock:42".into(),
        format!("/act/resolve?{order}"),
        "/act/quarantine".into(),
        "/none".into(),
    ];
    for (colours, width) in [
        ("light", 1200),
        ("dark", 1200),
        ("light", 360),
        ("dark", 360),
    ] {
        window.prefers(colours, width, 800).await;
        for page in &pages {
            window.open(page).await;
            let found = serious(&window, &axe).await;
            assert!(found.is_empty(), "{page}, {colours}, {width}: {found:#?}");
            assert!(fits(&window).await, "{page}, {colours}: wider than {width}");
        }
    }
    // The check does find something where there is something.
    window
        .run("document.querySelector('main').innerHTML = '<img src=\"\"><a href=\"/\"></a>'")
        .await;
    assert!(!serious(&window, &axe).await.is_empty());
    window.close().await;
    shop.shutdown(Duration::from_secs(1)).await;
}
