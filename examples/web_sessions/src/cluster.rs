//! Two serving processes, one address, and the users.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Instant;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::arguments::{Arguments, Mode};
use crate::report::{Run, percentile, round};
use crate::shop::IN_THE_MIDDLE;
use crate::user::{Tally, shop};
use crate::{Failure, meeting, proxy};

const SERVERS: u32 = 2;

/// A serving process. Dropping it kills the process.
#[derive(Debug)]
struct Server {
    address: SocketAddr,
    /// Dropping it stops the process in good order.
    input: ChildStdin,
    child: Child,
    /// Told when the process is in the middle of the request at which it stops.
    in_the_middle: oneshot::Receiver<()>,
}

impl Server {
    async fn start(arguments: &[String], url: &str) -> Result<Self, Failure> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let mut input = child.stdin.take().ok_or("no input of a process")?;
        // As input: every user of the host can read the arguments, and the URL may contain a password.
        input.write_all(format!("{url}\n").as_bytes()).await?;
        let output = child.stdout.take().ok_or("no output of a process")?;
        let mut lines = BufReader::new(output).lines();
        let address = lines.next_line().await?;
        let address = address
            .ok_or("a serving process could not start")?
            .parse()?;
        let (tell, in_the_middle) = oneshot::channel();
        tokio::spawn(async move {
            if lines.next_line().await.ok().flatten().as_deref() == Some(IN_THE_MIDDLE) {
                let _ = tell.send(());
            }
        });
        Ok(Self {
            address,
            input,
            child,
            in_the_middle,
        })
    }

    async fn stop(mut self) -> Result<(), Failure> {
        drop(self.input);
        self.child.wait().await?;
        Ok(())
    }

    /// Kills the process when it is in the middle of its request.
    async fn kill_in_the_middle(mut self) -> Result<(), Failure> {
        self.in_the_middle.await?;
        self.child.kill().await?;
        Ok(())
    }
}

/// Starts the servers, lets the users shop, and adds up what they found.
pub(crate) async fn one_run(arguments: &Arguments, mode: Mode, url: &str) -> Result<Run, Failure> {
    let mut background = JoinSet::new();
    let mut for_server = arguments.for_server(mode);
    if arguments.meet {
        let host = TcpListener::bind("127.0.0.1:0").await?;
        for_server.push(format!("--meet-at={}", host.local_addr()?));
        background.spawn(meeting::host(host, usize::try_from(arguments.tabs)?));
    }
    let mut servers = Vec::new();
    for number in 0..SERVERS {
        let mut for_server = for_server.clone();
        if arguments.kill && number == 0 {
            // Half of the requests go to it, and it stops after half of these.
            let request = (arguments.requests() / SERVERS / 2).max(1);
            for_server.push(format!("--stop-at={request}"));
        }
        servers.push(Server::start(&for_server, url).await?);
    }
    let door = TcpListener::bind("127.0.0.1:0").await?;
    let address = door.local_addr()?;
    let addresses = servers.iter().map(|server| server.address).collect();
    background.spawn(proxy::forward(door, addresses));
    let killed = arguments.kill.then(|| servers.remove(0));
    let killed = killed.map(|server| tokio::spawn(server.kill_in_the_middle()));

    let begun = Instant::now();
    let mut users = JoinSet::new();
    for user in 0..arguments.users {
        users.spawn(shop(address, user, arguments.clone()));
    }
    let mut all = Tally::default();
    while let Some(user) = users.join_next().await {
        let tally = user??;
        all.added += tally.added;
        all.lost += tally.lost;
        all.failed += tally.failed;
        all.waited_ms.extend(tally.waited_ms);
    }
    let seconds = begun.elapsed().as_secs_f64();
    if let Some(killed) = killed {
        killed.await??;
    }
    for server in servers {
        server.stop().await?;
    }
    all.waited_ms.sort_by(f64::total_cmp);
    Ok(Run {
        mode: mode.name(),
        guarded: mode.is_guarded(),
        requests: arguments.requests(),
        added: all.added,
        lost: all.lost,
        failed: all.failed,
        requests_per_s: round(f64::from(all.added) / seconds),
        p50_ms: round(percentile(&all.waited_ms, 50)),
        p99_ms: round(percentile(&all.waited_ms, 99)),
        longest_ms: round(percentile(&all.waited_ms, 100)),
    })
}
