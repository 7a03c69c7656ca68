//! A network on loopback: a TCP proxy in front of a server, with a time for a round trip, which counts round trips.
//!
//! It passes bytes on in both directions and in order, half a round trip after it has read them. It does not limit the
//! bandwidth. A connection begins a new round trip when its client sends after its server has sent.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// How URLs name the host of a server.
const HOST: &str = "127.0.0.1:";

/// How often [`achieved`] sends its byte.
const BYTES: usize = 300;

/// A thread that sleeps wakes late, even on an idle machine. A timer is set earlier, by at most this time.
const EARLY: Duration = Duration::from_micros(100);

/// A network in front of one server. Its thread runs until the process ends.
#[derive(Debug)]
pub(crate) struct Network {
    port: u16,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Half a round trip, in nanoseconds.
    half: AtomicU64,
    trips: AtomicU64,
}

impl Network {
    /// A network without a delay in front of the server of `url`, and the URL through it.
    pub(crate) fn before(url: &str) -> Result<(Self, String), Failure> {
        let at = url.find(HOST).ok_or("the server is not on 127.0.0.1")? + HOST.len();
        let rest = &url[at..];
        let digits = rest.find(|c: char| !c.is_ascii_digit());
        let (server, path) = rest.split_at(digits.unwrap_or(rest.len()));
        let network = Self::to(SocketAddr::from((Ipv4Addr::LOCALHOST, server.parse()?)))?;
        let url = format!("{}{}{path}", &url[..at], network.port);
        Ok((network, url))
    }

    fn to(server: SocketAddr) -> Result<Self, Failure> {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        let shared = Arc::new(Shared::default());
        let network = Self {
            port,
            shared: Arc::clone(&shared),
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build()?;
        thread::Builder::new()
            .name("network".into())
            .spawn(move || runtime.block_on(accept(listener, server, shared)))?;
        Ok(network)
    }

    /// Sets the time of a round trip for what is read from now on.
    pub(crate) fn set(&self, round_trip: Duration) {
        let half = u64::try_from(round_trip.as_nanos() / 2).unwrap_or(u64::MAX);
        self.shared.half.store(half, Ordering::Relaxed);
    }

    /// How many round trips the clients have begun, on all connections.
    #[allow(dead_code, reason = "the race needs no count")]
    pub(crate) fn trips(&self) -> u64 {
        self.shared.trips.load(Ordering::Relaxed)
    }
}

async fn accept(listener: std::net::TcpListener, server: SocketAddr, shared: Arc<Shared>) {
    let listener = TcpListener::from_std(listener).expect("the runtime of this thread has I/O");
    while let Ok((client, _)) = listener.accept().await {
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            // A connection that breaks ends in both directions.
            let _ = connection(client, server, shared).await;
        });
    }
}

async fn connection(
    client: TcpStream,
    server: SocketAddr,
    shared: Arc<Shared>,
) -> Result<(), Failure> {
    let server = TcpStream::connect(server).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let answered = AtomicBool::new(true);
    let asks = || {
        if answered.swap(false, Ordering::Relaxed) {
            shared.trips.fetch_add(1, Ordering::Relaxed);
        }
    };
    let answers = || answered.store(true, Ordering::Relaxed);
    tokio::try_join!(
        carry(from_client, to_server, &shared, asks),
        carry(from_server, to_client, &shared, answers),
    )?;
    Ok(())
}

/// One direction of a connection.
async fn carry(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    shared: &Shared,
    seen: impl Fn(),
) -> Result<(), Failure> {
    let (put, mut under_way) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    let read = async move {
        let mut buffer = vec![0; 1 << 16];
        loop {
            let count = from.read(&mut buffer).await?;
            if count == 0 {
                return Ok::<_, Failure>(());
            }
            seen();
            let half = Duration::from_nanos(shared.half.load(Ordering::Relaxed));
            put.send((Instant::now() + half, buffer[..count].to_vec()))?;
        }
    };
    let deliver = async {
        let mut timer = Timer::new()?;
        while let Some((due, bytes)) = under_way.recv().await {
            timer.wait_until(due).await?;
            to.write_all(&bytes).await?;
        }
        Ok::<_, Failure>(to.shutdown().await?)
    };
    tokio::try_join!(read, deliver)?;
    Ok(())
}

/// A timer of the kernel. (tokio's own timer counts milliseconds.)
struct Timer {
    descriptor: AsyncFd<Descriptor>,
    /// How late the thread has woken: a moving average.
    late: Duration,
}

/// Stays open until it is dropped, and remains the same descriptor.
struct Descriptor(TimerFd);

impl AsRawFd for Descriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl Timer {
    #[expect(
        deprecated,
        reason = "the new function is unsafe; this type keeps its promise"
    )]
    fn new() -> Result<Self, Failure> {
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::TFD_NONBLOCK)?;
        Ok(Self {
            descriptor: AsyncFd::new(Descriptor(timer))?,
            late: Duration::ZERO,
        })
    }

    async fn wait_until(&mut self, due: Instant) -> Result<(), Failure> {
        let target = due.checked_sub(self.late).unwrap_or(due);
        let left = target.saturating_duration_since(Instant::now());
        if !left.is_zero() {
            let once = Expiration::OneShot(TimeSpec::from_duration(left));
            let timer = &self.descriptor.get_ref().0;
            timer.set(once, TimerSetTimeFlags::empty())?;
            // The next `set` makes the timer unreadable.
            self.descriptor.readable().await?.clear_ready();
            let late = target.elapsed().min(EARLY);
            self.late = (7 * self.late + late) / 8;
        }
        Ok(())
    }
}

/// The median time of one byte to a server that sends it back, through a network with this round trip.
pub(crate) fn achieved(round_trip: Duration) -> Result<Duration, Failure> {
    let server = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let network = Network::to(server.local_addr()?)?;
    network.set(round_trip);
    thread::spawn(move || {
        let (mut stream, _) = server.accept()?;
        stream.set_nodelay(true)?;
        let mut byte = [0];
        while stream.read_exact(&mut byte).is_ok() {
            stream.write_all(&byte)?;
        }
        Ok::<_, std::io::Error>(())
    });
    let mut stream = std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, network.port))?;
    stream.set_nodelay(true)?;
    let mut times = Vec::new();
    for _ in 0..BYTES {
        let (began, mut byte) = (Instant::now(), [0]);
        stream.write_all(&byte)?;
        stream.read_exact(&mut byte)?;
        times.push(began.elapsed());
    }
    times.sort_unstable();
    Ok(times[times.len() / 2])
}
