//! What a person does.

use std::future::{Ready, ready};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use fantoccini::Locator;
use fantoccini::key::Key;
use nix::sys::signal::Signal;
use rowlock::{Begun, Fingerprint, Outcome, Scope, StepFailed};
use rowlock_test::eventually;
use serde_json::json;

use crate::commands::Place;
use crate::window::Window;

const LONG: Duration = Duration::from_mins(10);

/// The step of a payment whose provider does not answer.
fn no_answer() -> Ready<Result<u32, StepFailed<rowlock::Error>>> {
    let error = rowlock::Name::new("").unwrap_err();
    ready(Err(StepFailed::Unknown(rowlock::Error::Invalid(error))))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_moves_while_one_watches() {
    let place = Arc::new(Place::new());
    let (_console, address) = place.console("127.0.0.1:0");
    let window = Window::at(&address).await;
    let mut first = place.holder("report");
    window.open("/lock?name=report").await;
    window.shows("Nobody waits for it.").await;
    window.run("window.isTheSamePage = true").await;
    let second = tokio::task::spawn_blocking({
        let place = Arc::clone(&place);
        move || place.holder("report")
    });
    window.hides("Nobody waits for it.").await;
    assert_eq!(first.end(), 0);
    let second = second.await.unwrap();
    window.shows("Nobody waits for it.").await;
    let pid = second.child.id().to_string();
    window.shows(&format!("[{pid}]")).await;
    assert_eq!(window.run("return window.isTheSamePage").await, json!(true));
    assert_eq!(window.complaints().await, [""; 0]);
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_is_freed_and_its_command_ends_with_76() {
    let place = Place::new();
    let (_console, address) = place.console("127.0.0.1:0");
    let window = Window::at(&address).await;
    let mut holder = place.holder("report");
    window.open("/locks").await;
    window.click("Free it").await;
    window.shows("These lose it:").await;
    window.write("reason", "it has hung since noon").await;
    window.click("Free the lock…").await;
    window.shows("Are you sure?").await;
    window.shows("it has hung since noon").await;
    window.click("Yes: Free the lock").await;
    window.shows("The lock was freed.").await;
    window.shows("Nobody holds it.").await;
    assert_eq!(holder.child.wait().unwrap().code(), Some(76));
    assert_eq!(window.complaints().await, [""; 0]);
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_record_is_resolved_and_the_retry_gets_the_outcome() {
    let place = Place::new();
    let shop = place.client("shop").await;
    let begin = async || {
        let key = Scope("shop").key("order-17");
        shop.idempotency()
            .begin(key, Fingerprint::of("17"))
            .await
            .unwrap()
    };
    let Begun::New(attempt) = begin().await else {
        panic!("it is new")
    };
    attempt.step_once("charge", no_answer()).await.unwrap_err();
    drop(attempt);
    eventually("it is unknown", async || {
        matches!(begin().await, Begun::Unknown(_))
    })
    .await;

    let (_console, address) = place.console("127.0.0.1:0");
    let window = Window::at(&address).await;
    window.open("/").await;
    window.click("order-17").await;
    window.shows("may or may not have happened").await;
    window.click("Resolve it").await;
    window.shows("Did the step happen?").await;
    let yes = window
        .driver
        .find(Locator::Css("input[value=yes]"))
        .await
        .unwrap();
    yes.click().await.unwrap();
    window.write("result", "42").await;
    window.write("reason", "the provider has the charge").await;
    window.click("Resolve the record…").await;
    window.shows("The step happened. Its result: 42").await;
    window.click("Yes: Resolve the record").await;
    window.shows("The record was resolved.").await;

    let Begun::New(attempt) = begin().await else {
        panic!("it goes on")
    };
    let charge = attempt.step_once("charge", no_answer()).await.unwrap();
    assert_eq!(charge, 42, "it is not charged again");
    attempt
        .complete(&Outcome::json(&"paid").unwrap())
        .await
        .unwrap();
    window.shows("\"paid\"").await;
    let Begun::Replay(outcome) = begin().await else {
        panic!("it is done")
    };
    assert_eq!(outcome.bytes(), b"\"paid\"");
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_recovers_when_the_console_is_started_again() {
    let place = Place::new();
    let (console, address) = place.console("127.0.0.1:0");
    let window = Window::at(&address).await;
    window.open("/sessions").await;
    window.shows("live session").await;
    window.run("window.isTheSamePage = true").await;
    console.signal(Signal::SIGKILL);
    window.shows("The console does not answer.").await;
    let listen = address.trim_start_matches("http://");
    let (_console, _) = place.console(listen);
    window.hides("The console does not answer.").await;
    let client = place.client("a new client").await;
    let _held = client.lock("ledger").in_session().acquire().await.unwrap();
    window.shows("a new client").await;
    assert_eq!(window.run("return window.isTheSamePage").await, json!(true));
    window.close().await;
}

/// A page that is not read says why, in the words of the console.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_says_why_it_does_not_change() {
    let place = Place::new();
    let (_console, address) = place.console("127.0.0.1:0");
    let host = address.trim_start_matches("http://");
    let look = |number: u32| {
        let mut socket = TcpStream::connect(host).unwrap();
        let request = format!("GET /live/lock?name={number} HTTP/1.1\r\nhost: {host}\r\n\r\n");
        socket.write_all(request.as_bytes()).unwrap();
        let mut begin = [0; 12];
        socket.read_exact(&mut begin).unwrap();
        assert_eq!(&begin, b"HTTP/1.1 200");
        socket
    };
    let others: Vec<TcpStream> = (0..16).map(look).collect();
    let window = Window::at(&address).await;
    window.open("/locks").await;
    window.shows("You look at 16 pages at a time").await;
    drop(others);
    window.hides("You look at 16 pages").await;
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_says_that_the_login_has_ended() {
    let place = Place::new();
    let token = "a secret of more than 20 characters";
    let (_console, address) = place.console_with_token(token);
    let window = Window::at(&address).await;
    window.open("/login").await;
    window.write("name", "Ann").await;
    window.write("token", token).await;
    window.click("Log in").await;
    window.shows("you act as Ann").await;
    window.open("/locks").await;
    let first = window.driver.window().await.unwrap();
    let second = window.driver.new_window(true).await.unwrap().handle;
    window.driver.switch_to_window(second).await.unwrap();
    window.open("/logout").await;
    window.click("Log out").await;
    window.shows("The token of this console").await;
    window.driver.switch_to_window(first).await.unwrap();
    let client = place.client("worker-7").await;
    let _held = client.lock("ledger").ttl(LONG).acquire().await.unwrap();
    window.shows("Your login has ended.").await;
    window.hides("ledger").await;
    window.close().await;
}

/// The focus stays where it is, while the page changes under it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_is_used_by_keyboard() {
    let place = Place::new();
    let client = place.client("worker-7").await;
    let _held = client.lock("stock:42").ttl(LONG).acquire().await.unwrap();
    let (_console, address) = place.console("127.0.0.1:0");
    let window = Window::at(&address).await;
    window.open("/locks").await;
    let focus = async |key: Key| {
        let element = window.driver.active_element().await.unwrap();
        element
            .send_keys(&char::from(key).to_string())
            .await
            .unwrap();
        window
            .run("return document.activeElement.textContent.trim()")
            .await
    };
    assert_eq!(focus(Key::Tab).await, json!("To the content"));
    focus(Key::Enter).await;
    let mut word = json!("");
    for _ in 0..10 {
        word = focus(Key::Tab).await;
        if word == "stock:42" {
            break;
        }
    }
    assert_eq!(word, "stock:42");
    // A row before it comes, and its own row changes.
    window.run("window.focused = document.activeElement").await;
    let _before = client.lock("a lock").ttl(LONG).acquire().await.unwrap();
    window.shows("a lock").await;
    assert_eq!(
        window
            .run("return document.activeElement === window.focused")
            .await,
        json!(true)
    );
    focus(Key::Enter).await;
    window.shows("last fence").await;
    window.close().await;
}
