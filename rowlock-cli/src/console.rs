//! `rowlock console`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use axum::http::request::Parts;
use clap::Args;
use nix::sys::signal::Signal;
use rowlock_console::{Access, Visitor};
use tokio::net::TcpListener;
use tokio::select;

use crate::out::say;
use crate::person::user;
use crate::serve::serve;
use crate::signals::Caught;
use crate::{Failure, UNAVAILABLE, USAGE, database};

/// The shortest token. Nothing limits how often a stranger may guess.
const TOKEN: usize = 20;

#[derive(Debug, Args)]
pub(crate) struct Console {
    /// Listen here. An address that other machines reach needs --token-file.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8090", value_parser = address)]
    listen: SocketAddr,
    /// Show everything, and change nothing.
    #[arg(long)]
    read_only: bool,
    /// Ask for the token in this file before showing anything: 20 characters at least, in the first line.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Show the outcomes of records, which may have personal data in them.
    #[arg(long)]
    show_outcomes: bool,
    /// Also answer requests for this host: the name in the browser's address, where it is neither localhost nor an IP
    /// address. May be given several times.
    #[arg(long, value_name = "HOST", value_parser = host)]
    allow_host: Vec<String>,
}

impl Console {
    pub(crate) async fn execute(self, url: &str) -> Result<u8, Failure> {
        if !self.listen.ip().is_loopback() && self.token_file.is_none() {
            let message = format!(
                "everybody who reaches {} could use the console: give --token-file, or listen on 127.0.0.1",
                self.listen
            );
            return Err(Failure::Other(message, USAGE));
        }
        let token = self.token_file.as_deref().map(token).transpose()?;
        let rowlock = database::find_for_many(url).await?;
        let (is_read_only, user) = (self.read_only, user());
        let access = move |parts: &Parts| {
            let visitor = parts.extensions.get::<Visitor>();
            let who = visitor.map_or(&user, |visitor| &visitor.name);
            if is_read_only {
                Access::Read
            } else {
                Access::Act { who: who.clone() }
            }
        };
        let mut console =
            rowlock_console::Console::new(&rowlock, access).show_outcomes(self.show_outcomes);
        for host in &self.allow_host {
            console = console.allow_host(host);
        }
        if let Some(token) = token {
            console = console.token(token);
        }
        let listen = |error| {
            Failure::Other(
                format!(
                    "cannot listen on {}: {error} (--listen {}:0 takes a free port)",
                    self.listen,
                    self.listen.ip()
                ),
                UNAVAILABLE,
            )
        };
        let listener = TcpListener::bind(self.listen).await.map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        let (mut interrupt, mut terminate) =
            (Caught::new(Signal::SIGINT)?, Caught::new(Signal::SIGTERM)?);
        say!(
            "the console of {} is at http://{address}/",
            rowlock.target()
        )?;
        select! {
            never = serve(listener, console.router()) => never,
            Some(()) = interrupt.recv() => Ok(0),
            Some(()) = terminate.recv() => Ok(0),
        }
    }
}

/// `localhost` is 127.0.0.1.
fn address(text: &str) -> Result<SocketAddr, String> {
    let address = text.replacen("localhost:", "127.0.0.1:", 1);
    let wrong = |_| "write an IP address and a port, as in 127.0.0.1:8090 or [::1]:8090";
    Ok(address.parse().map_err(wrong)?)
}

/// The name of a host, as a browser sends it.
fn host(text: &str) -> Result<String, String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    if text.is_empty() || !text.chars().all(is_part) {
        return Err("write a host, without a scheme or a port, as in ops.example".into());
    }
    Ok(text.to_owned())
}

/// The first line of a file.
fn token(file: &Path) -> Result<String, Failure> {
    let refuse = |why: String| Failure::Other(format!("{}: {why}", file.display()), USAGE);
    let text = std::fs::read_to_string(file);
    let text = text.map_err(|error| refuse(format!("cannot read the token: {error}")))?;
    let token = text.lines().next().unwrap_or_default().trim();
    if token.chars().count() < TOKEN {
        return Err(refuse(format!(
            "a token has {TOKEN} characters at least: `openssl rand -hex 20` makes one"
        )));
    }
    Ok(token.to_owned())
}
