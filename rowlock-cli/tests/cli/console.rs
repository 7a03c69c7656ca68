//! `rowlock console`, over sockets.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, User, getuid};
use rowlock_test::patience;

use crate::shell::{Shell, code, stderr};

const TOKEN: &str = "a secret of more than 20 characters";

/// A command that serves a console of its folder.
struct Serving {
    child: Child,
    address: String,
}

impl Serving {
    fn new(shell: &Shell, arguments: &[&str]) -> Self {
        let arguments = [&["console", "--listen", "127.0.0.1:0"], arguments].concat();
        Self::of(shell, shell.command(&arguments))
    }

    fn of(shell: &Shell, mut command: Command) -> Self {
        assert_eq!(code(&shell.run(&["migrate"])), 0);
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        let address = line
            .trim()
            .strip_suffix('/')
            .and_then(|line| line.rsplit_once("http://"));
        let address = address.unwrap_or_else(|| panic!("{line}")).1.to_owned();
        Self { child, address }
    }

    /// The whole answer.
    fn send(&self, method: &str, path: &str, headers: &str, body: &str) -> String {
        let mut socket = TcpStream::connect(&self.address).unwrap();
        socket.set_read_timeout(Some(patience())).unwrap();
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ncontent-length: {length}\r\n\
             content-type: application/x-www-form-urlencoded\r\n{headers}\r\n{body}",
            self.address
        );
        socket.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        answer
    }

    fn get(&self, path: &str) -> String {
        self.send("GET", path, "", "")
    }

    /// The exit code, and what went to standard error.
    fn end(mut self, signal: Signal) -> (i32, String) {
        kill(
            Pid::from_raw(i32::try_from(self.child.id()).unwrap()),
            signal,
        )
        .unwrap();
        let mut told = String::new();
        self.child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut told)
            .unwrap();
        (self.child.wait().unwrap().code().unwrap(), told)
    }
}

/// The text between two others.
fn between<'a>(text: &'a str, before: &str, after: &str) -> &'a str {
    let (_, rest) = text.split_once(before).unwrap_or_else(|| panic!("{text}"));
    rest.split_once(after).unwrap().0
}

/// Also where the log is to have warnings only: the line of an action is its only record.
#[test]
fn a_console_shows_acts_and_logs() {
    let shell = Shell::new();
    let mut command = shell.command(&["console", "--listen", "127.0.0.1:0"]);
    command.env("ROWLOCK_LOG", "warn");
    let serving = Serving::of(&shell, command);
    assert!(serving.get("/").contains("Nothing needs a person"));
    let page = serving.get("/act/quarantine");
    let cookie = between(&page, "set-cookie: ", ";");
    let form = between(&page, "name=\"form\" value=\"", "\"");
    let seen = between(&page, "name=\"seen\" value=\"", "\"");
    let body = format!("form={form}&seen={seen}&time=10m&reason=a+failover");
    let cookie = format!("cookie: {cookie}\r\n");
    let sure = serving.send("POST", "/act/quarantine", &cookie, &body);
    let sure = between(&sure, "name=\"sure\" value=\"", "\"");
    let body = format!("{body}&sure={sure}");
    let answer = serving.send("POST", "/act/quarantine", &cookie, &body);
    assert!(answer.starts_with("HTTP/1.1 303"), "{answer}");
    let left = shell.json(&["quarantine", "--json"]);
    assert!(left["left_ms"].is_u64(), "{left}");
    let (code, told) = serving.end(Signal::SIGTERM);
    let user = User::from_uid(getuid()).unwrap().unwrap().name;
    assert_eq!(code, 0);
    for words in [
        format!("who=\"{user}\""),
        "reason=\"a failover\"".into(),
        "rowlock::console".into(),
    ] {
        assert!(told.contains(&words), "{words}: {told}");
    }
}

/// As many half requests as the process may have connections.
#[test]
fn half_requests_keep_nobody_out() {
    let shell = Shell::new();
    let mut command = Command::new("sh");
    let script = "ulimit -n 256; exec \"$0\" console --listen 127.0.0.1:0";
    command.args(["-c", script, env!("CARGO_BIN_EXE_rowlock")]);
    command
        .current_dir(shell.dir.path())
        .env_remove("ROWLOCK_URL");
    let serving = Serving::of(&shell, command);
    let half = |text: &str| {
        let mut socket = TcpStream::connect(&serving.address).unwrap();
        socket.write_all(text.as_bytes()).unwrap();
        socket
    };
    let begun = format!("GET / HTTP/1.1\r\nhost: {}\r\n", serving.address);
    let mut halves: Vec<TcpStream> = (0..300).map(|_| half(&begun)).collect();
    halves.push(half(""));
    let form = "content-type: application/x-www-form-urlencoded\r\ncontent-length: 9\r\n\r\nform=";
    halves.push(half(&format!(
        "{}{form}",
        begun.replace("GET /", "POST /login")
    )));
    assert!(serving.get("/").contains("Nothing needs a person"));
    for socket in &mut halves {
        socket.set_read_timeout(Some(patience())).unwrap();
        let ended = socket.read_to_end(&mut Vec::new());
        let is_open = ended.is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
        assert!(!is_open, "a half request is kept");
    }
    assert_eq!(serving.end(Signal::SIGTERM).0, 0);
}

#[test]
fn a_console_that_is_read_only_refuses_to_act() {
    let shell = Shell::new();
    let serving = Serving::new(&shell, &["--read-only"]);
    assert!(serving.get("/").contains("you may look only"));
    for method in ["GET", "POST"] {
        let answer = serving.send(method, "/act/quarantine", "", "time=10m&reason=x&sure=yes");
        assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
    }
    assert_eq!(serving.end(Signal::SIGINT).0, 0);
}

#[test]
fn a_console_with_a_token_file_asks_for_the_token() {
    let shell = Shell::new();
    let file = shell.dir.path().join("token");
    std::fs::write(&file, format!("{TOKEN}\nnot this\n")).unwrap();
    let serving = Serving::new(
        &shell,
        &["--token-file", "token", "--allow-host", "ops.example"],
    );
    assert!(serving.get("/").contains("location: /login"));
    let page = serving.get("/login");
    let cookie = between(&page, "set-cookie: ", ";");
    let form = between(&page, "name=\"form\" value=\"", "\"");
    let body = format!("form={form}&name=Ann&token={}", TOKEN.replace(' ', "+"));
    let answer = serving.send("POST", "/login", &format!("cookie: {cookie}\r\n"), &body);
    assert!(
        answer.contains("set-cookie: rowlock_console_login_"),
        "{answer}"
    );
    let cookie = between(&answer, "set-cookie: ", ";");
    let page = serving.send("GET", "/", &format!("cookie: {cookie}\r\n"), "");
    assert!(page.contains("you act as <bdi>Ann</bdi>"), "{page}");
    let (_, told) = serving.end(Signal::SIGTERM);
    assert!(
        told.contains("logged in") && !told.contains(TOKEN),
        "{told}"
    );
}

#[test]
fn a_console_that_others_could_use_is_refused() {
    let shell = Shell::new();
    assert_eq!(code(&shell.run(&["migrate"])), 0);
    let refused = |arguments: &[&str], expected: i32, why: &str| {
        let output = shell.run(&[&["console"], arguments].concat());
        assert_eq!(code(&output), expected, "{}", stderr(&output));
        assert!(stderr(&output).contains(why), "{}", stderr(&output));
    };
    for address in ["0.0.0.0:0", "[::]:0", "10.0.0.1:0"] {
        refused(&["--listen", address], 64, "give --token-file");
    }
    std::fs::write(shell.dir.path().join("short"), "too short").unwrap();
    refused(&["--token-file", "short"], 64, "20 characters at least");
    refused(&["--token-file", "none"], 64, "cannot read the token");
    for address in ["nonsense", "8090", "127.0.0.1", "shop.example:8090"] {
        refused(&["--listen", address], 64, "as in 127.0.0.1:8090");
    }
    for host in [
        "ops.example:8090",
        "https://ops.example",
        "ann@ops.example",
        "*.example",
        "ops.example/",
        "",
    ] {
        refused(
            &["--allow-host", host],
            64,
            "a host, without a scheme or a port",
        );
    }
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    refused(&["--listen", &address], 69, "takes a free port");
}
