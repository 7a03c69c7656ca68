//! Processes at work that are killed with SIGKILL and paused with SIGSTOP at random, and what they tell, line by line.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::str::FromStr;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rand::Rng;

use crate::process::{Part, Role};

/// The slot and the id of a process, and what one line of its says.
type Line<E> = (usize, u32, Result<E, String>);

fn read<E>(event: Result<E, String>) -> E {
    event.unwrap_or_else(|reason| panic!("a line of a process: {reason}"))
}

/// A running process. Dropping it kills it, paused or not.
#[derive(Debug)]
struct Worker {
    child: Child,
    paused_until: Option<Instant>,
}

impl Worker {
    /// `slot` and the process's id tell the parent whose line it is.
    fn start<P, E>(role: &Role<P>, slot: usize, sender: &mpsc::Sender<Line<E>>) -> Self
    where
        P: Part,
        E: FromStr<Err = String> + Send + 'static,
    {
        let mut child = role.command().stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, id) = (sender.clone(), child.id());
        std::thread::spawn(move || {
            for line in output.lines() {
                let event = line.map_err(|error| error.to_string());
                drop(sender.send((slot, id, event.and_then(|line| line.parse()))));
            }
        });
        Self {
            child,
            paused_until: None,
        }
    }

    fn signal(&self, signal: Signal) {
        kill(
            Pid::from_raw(i32::try_from(self.child.id()).unwrap()),
            signal,
        )
        .unwrap();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The processes. `E` is what one line of theirs says.
#[derive(Debug)]
pub struct Crew<E> {
    workers: Vec<Worker>,
    sender: mpsc::Sender<Line<E>>,
    receiver: mpsc::Receiver<Line<E>>,
    pub kills: u32,
    pub pauses: u32,
}

impl<E: FromStr<Err = String> + Send + 'static> Crew<E> {
    pub fn start(roles: impl IntoIterator<Item = Role<impl Part>>) -> Self {
        let (sender, receiver) = mpsc::channel();
        let workers = roles
            .into_iter()
            .enumerate()
            .map(|(slot, role)| Worker::start(&role, slot, &sender))
            .collect();
        Self {
            workers,
            sender,
            receiver,
            kills: 0,
            pauses: 0,
        }
    }

    /// The next thing that a process told, if there is one: the process's slot, unless another process has the slot
    /// now. Panics when it cannot be read.
    pub fn next_event(&mut self) -> Option<(Option<usize>, E)> {
        let (slot, id, event) = self.receiver.try_recv().ok()?;
        let is_current = self.workers[slot].child.id() == id;
        Some((is_current.then_some(slot), read(event)))
    }

    /// Lets every process go on whose pause is over. Panics when a process has ended by itself: its last words are on
    /// the standard error.
    pub fn wake(&mut self) {
        for worker in &mut self.workers {
            let ended = worker.child.try_wait().unwrap();
            assert!(ended.is_none(), "a process has ended by itself: {ended:?}");
            if worker
                .paused_until
                .is_some_and(|until| until <= Instant::now())
            {
                worker.paused_until = None;
                worker.signal(Signal::SIGCONT);
            }
        }
    }

    /// Pauses a process for at most `max_pause`, or kills one. `Some`: the slot of the killed one, for
    /// [`replace`](Self::replace).
    pub fn strike(&mut self, max_pause: Duration) -> Option<usize> {
        let slot = rand::rng().random_range(0..self.workers.len());
        let worker = &mut self.workers[slot];
        if worker.paused_until.is_none() && rand::rng().random_bool(0.5) {
            self.pauses += 1;
            let pause = rand::rng().random_range(Duration::from_millis(100)..=max_pause);
            worker.signal(Signal::SIGSTOP);
            worker.paused_until = Some(Instant::now() + pause);
            return None;
        }
        self.kill(slot);
        Some(slot)
    }

    /// Pauses the process in a slot for this time.
    pub fn pause(&mut self, slot: usize, time: Duration) {
        let worker = &mut self.workers[slot];
        worker.signal(Signal::SIGSTOP);
        worker.paused_until = Some(Instant::now() + time);
        self.pauses += 1;
    }

    /// A process that was paused goes on with the next [`wake`](Self::wake).
    pub fn resume(&mut self, slot: usize) {
        self.workers[slot].paused_until = Some(Instant::now());
    }

    /// Kills the process in this slot, for [`replace`](Self::replace). Returns its id.
    pub fn kill(&mut self, slot: usize) -> u32 {
        self.kills += 1;
        let child = &mut self.workers[slot].child;
        let ended = child.try_wait().unwrap();
        assert!(ended.is_none(), "a process has ended by itself: {ended:?}");
        child.kill().unwrap();
        child.wait().unwrap();
        child.id()
    }

    /// Starts a process in the place of a killed one.
    pub fn replace(&mut self, slot: usize, role: &Role<impl Part>) {
        self.workers[slot] = Worker::start(role, slot, &self.sender);
    }

    /// Kills all of them, and returns all that they told meanwhile. Panics when it cannot be read.
    pub fn end(self) -> impl Iterator<Item = E> {
        drop((self.workers, self.sender));
        self.receiver.into_iter().map(|(.., event)| read(event))
    }
}
