//! Names that would like to be code.

use std::time::Duration;

use serde_json::json;

use crate::commands::Place;
use crate::window::Window;

const NAMES: [&str; 6] = [
    "<script>window.isRun = true</script>",
    "\"><img src=x onerror='window.isRun = true'>",
    "<svg onload='window.isRun = true'>",
    "javascript:window.isRun=true",
    "</td></tr></table><iframe srcdoc='<script>top.isRun = true</script>'>",
    "\u{202e}eurt = nuRsi.wodniw",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_names_do_nothing() {
    let place = Place::new();
    let client = place.client(NAMES[1]).await;
    let mut held = Vec::new();
    for name in NAMES {
        let lock = client.lock(name).ttl(Duration::from_mins(10));
        let one = lock.acquire().await.unwrap();
        one.begin_run().await.unwrap();
        one.end_run(false, name).await.unwrap();
        held.push(one);
    }
    let (_console, address) = place.console("127.0.0.1:0");
    let window = Window::at(&address).await;
    for page in ["/locks", "/jobs", "/"] {
        window.open(page).await;
        // The first content comes with the page, and the next one by the script.
        window.shows("window.isRun").await;
        let before = window
            .run("window.seen = document.querySelector('#live').innerHTML")
            .await;
        assert!(before.is_null());
        let locks = client
            .lock(format!("another {page}"))
            .ttl(Duration::from_mins(10));
        let another = locks.acquire().await.unwrap();
        another.begin_run().await.unwrap();
        another.end_run(false, "").await.unwrap();
        window.shows(&format!("another {page}")).await;
        held.push(another);
        let foreign = "return [document.querySelectorAll('main img, main iframe, main script').length, \
                       !!window.isRun, document.querySelectorAll('tbody tr').length]";
        let found = window.run(foreign).await;
        assert_eq!(
            (&found[0], &found[1]),
            (&json!(0), &json!(false)),
            "{page}: {found}"
        );
    }
    for name in NAMES {
        let script = format!("return encodeURIComponent({})", json!(name));
        let word = window.run(&script).await;
        let path = format!("/lock?name={}", word.as_str().unwrap());
        window.open(&path).await;
        window.click("Free it").await;
        window.shows("These lose it:").await;
        assert_eq!(window.run("return !!window.isRun").await, json!(false));
    }
    assert_eq!(window.complaints().await, [""; 0]);
    window.close().await;
}

/// A browser sends the end of a line in a form as CR LF.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_with_an_end_of_a_line_is_the_one_that_is_freed() {
    let place = Place::new();
    let client = place.client("worker-7").await;
    for name in ["a\nb", "a\r\nb"] {
        let lock = client.lock(name).ttl(Duration::from_mins(10));
        std::mem::forget(lock.acquire().await.unwrap());
    }
    let (_console, address) = place.console("127.0.0.1:0");
    let window = Window::at(&address).await;
    window.open("/act/free?name=a%0Ab").await;
    window.write("reason", "it hangs").await;
    window.click("Free the lock…").await;
    window.shows("Are you sure?").await;
    window.click("Yes: Free the lock").await;
    window.shows("The lock was freed.").await;
    let left = client.admin().list().await.unwrap();
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].name.as_str(), "a\r\nb");
    window.close().await;
}
