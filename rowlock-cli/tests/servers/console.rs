//! The console on a server.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::time::Duration;

use rowlock::Engine;
use rowlock_test::{Db, eventually, patience};

use crate::command::command;

const TTL: Duration = Duration::from_mins(10);

/// A console, which ends with the test.
struct Serving {
    child: Child,
    address: String,
}

impl Serving {
    fn new(url: &str) -> Self {
        let mut command = command(url, &["console", "--listen", "127.0.0.1:0"]);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        let (_, address) = line.trim().rsplit_once("http://").unwrap();
        let address = address.trim_end_matches('/').to_owned();
        Self { child, address }
    }

    /// Sends a request, and does not wait for the answer.
    fn ask(&self, begin: &str, cookie: &str, body: &str) -> TcpStream {
        let mut socket = TcpStream::connect(&self.address).unwrap();
        socket.set_read_timeout(Some(patience())).unwrap();
        let (host, length) = (&self.address, body.len());
        let request = format!(
            "{begin} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\ncookie: {cookie}\r\ncontent-length: {length}\r\n\
             content-type: application/x-www-form-urlencoded\r\n\r\n{body}"
        );
        socket.write_all(request.as_bytes()).unwrap();
        socket
    }

    fn get(&self, path: &str, cookie: &str) -> String {
        whole(self.ask(&format!("GET {path}"), cookie, ""))
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn whole(mut socket: TcpStream) -> String {
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    answer
}

/// The text between two others.
fn between<'a>(text: &'a str, before: &str, after: &str) -> &'a str {
    let (_, rest) = text.split_once(before).unwrap_or_else(|| panic!("{text}"));
    rest.split_once(after).unwrap().0
}

/// Where the form of a page goes, and what is hidden in it.
fn form(page: &str) -> (String, String) {
    let form = between(page, "<form method=\"post\" action=\"", "</form>");
    let mut hidden = String::new();
    for input in form.split("<input type=\"hidden\" name=\"").skip(1) {
        let (name, value) = (
            input.split('"').next().unwrap(),
            between(input, "value=\"", "\""),
        );
        hidden.extend([name, "=", value, "&"]);
    }
    (format!("POST {}", form.split('"').next().unwrap()), hidden)
}

/// An operator frees a lock whose row a transaction keeps, which takes as long as an operation may take. Others look.
#[tokio::test]
async fn a_name_that_a_transaction_keeps_does_not_stop_the_console() {
    let db = Db::new(Engine::Postgres).await;
    let rowlock = db.rowlock().await;
    let held = rowlock.lock("kept").ttl(TTL).acquire().await.unwrap();
    let console = Serving::new(&db.url);
    let kept = db.lock_row("kept").await;
    let is_listed_first = async || {
        let locks = console.get("/locks", "");
        let path = format!("/act/free?{}", between(&locks, "\"/act/free?", "\""));
        let page = console.get(&path, "");
        let cookie = between(&page, "set-cookie: ", ";").to_owned();
        let (to, hidden) = form(&page);
        let sure = whole(console.ask(&to, &cookie, &format!("{hidden}reason=x")));
        let (to, hidden) = form(&sure);
        let word = between(&sure, "name=\"sure\" value=\"", "\"");
        let free = console.ask(&to, &cookie, &format!("{hidden}sure={word}"));
        eventually("it waits for the row", async || db.waiting().await > 0).await;
        let locks = console.get("/locks", "");
        assert!(locks.contains("kept"), "{locks}");
        free.set_nonblocking(true).unwrap();
        let seen = free.peek(&mut [0]);
        let waits = seen.is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
        free.set_nonblocking(false).unwrap();
        whole(free);
        waits
    };
    eventually("a list overtakes the free", is_listed_first).await;
    kept.release().await;
    held.release().await.unwrap();
    db.remove().await;
}
