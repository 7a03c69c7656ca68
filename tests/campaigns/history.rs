//! What the processes did, in the time of one clock of this host, and the checker that judges it.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// The host's monotonic clock, which all its processes share.
pub(crate) fn now() -> Duration {
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC)
        .unwrap()
        .into()
}

/// What a worker tells, a line each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    /// The lease was granted; `asked` is from before the request, `at` from after the answer.
    Granted {
        name: String,
        fence: i64,
        asked: Duration,
        at: Duration,
    },
    /// A write under the lease: the guard was asked after `checked`, said "held", and the write left
    /// before `at`.
    Write {
        name: String,
        fence: i64,
        checked: Duration,
        at: Duration,
    },
    /// The worker is done with the lease, or has learnt that it lost it.
    Done { name: String, fence: i64 },
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Granted {
                name,
                fence,
                asked,
                at,
            } => {
                write!(
                    f,
                    "granted {name} {fence} {} {}",
                    asked.as_nanos(),
                    at.as_nanos()
                )
            }
            Self::Write {
                name,
                fence,
                checked,
                at,
            } => {
                write!(
                    f,
                    "write {name} {fence} {} {}",
                    checked.as_nanos(),
                    at.as_nanos()
                )
            }
            Self::Done { name, fence } => write!(f, "done {name} {fence} 0 0"),
        }
    }
}

impl FromStr for Event {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let words: Vec<&str> = line.split(' ').collect();
        let [what, name, fence, first, second] = words[..] else {
            return Err(format!("half a line: {line:?}")); // of a killed process
        };
        let number = |word: &str| word.parse::<u64>().map_err(|e| format!("{line:?}: {e}"));
        let time = |word| number(word).map(Duration::from_nanos);
        let name = name.to_owned();
        let fence = fence.parse().map_err(|e| format!("{line:?}: {e}"))?;
        match what {
            "granted" => Ok(Self::Granted {
                name,
                fence,
                asked: time(first)?,
                at: time(second)?,
            }),
            "write" => Ok(Self::Write {
                name,
                fence,
                checked: time(first)?,
                at: time(second)?,
            }),
            "done" => Ok(Self::Done { name, fence }),
            _ => Err(format!("not an event: {line:?}")),
        }
    }
}

/// A resource that refuses a smaller fence than it has seen, and remembers every write.
#[derive(Debug, Default)]
pub(crate) struct Register {
    seen: HashMap<String, i64>,
    accepted: Vec<(String, i64)>,
    pub(crate) refused: usize,
}

impl Register {
    fn write(&mut self, name: &str, fence: i64) {
        let seen = self.seen.entry(name.to_owned()).or_default();
        if fence < *seen {
            self.refused += 1;
        } else {
            *seen = fence;
            self.accepted.push((name.to_owned(), fence));
        }
    }

    /// Writes that were accepted behind one with a greater fence.
    fn accepted_stale(&self) -> usize {
        let mut greatest: HashMap<&str, i64> = HashMap::new();
        self.accepted
            .iter()
            .filter(|(name, fence)| {
                let greatest = greatest.entry(name).or_default();
                *greatest = (*greatest).max(*fence);
                *fence < *greatest
            })
            .count()
    }
}

/// All events, in the order in which they arrived.
#[derive(Debug, Default)]
pub(crate) struct History {
    events: Vec<Event>,
    pub(crate) register: Register,
}

/// What the checker found in a history without a violation.
#[derive(Debug)]
pub(crate) struct Verdict {
    pub(crate) grants: usize,
    pub(crate) writes: usize,
    /// Writes that left after somebody else had been granted the name, because their process was
    /// paused between asking its guard and writing. Only the register, or a pin, stops these.
    pub(crate) overlaps: usize,
    pub(crate) refused: usize,
}

impl History {
    pub(crate) fn record(&mut self, event: Event) {
        match &event {
            // The first thing a new holder does is to show its fence to the resource.
            Event::Granted { name, fence, .. } | Event::Write { name, fence, .. } => {
                self.register.write(name, *fence);
            }
            Event::Done { .. } => {}
        }
        self.events.push(event);
    }

    /// Whether nothing has happened yet.
    pub(crate) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Judges everything, and panics at a violation.
    pub(crate) fn check(&self) -> Verdict {
        let mut names: Vec<&str> = self.events.iter().map(Event::name).collect();
        names.sort_unstable();
        names.dedup();
        let mut verdict = Verdict {
            grants: 0,
            writes: 0,
            overlaps: 0,
            refused: self.register.refused,
        };
        for name in names {
            self.check_name(name, &mut verdict);
        }
        assert_eq!(self.register.accepted_stale(), 0, "accepted stale writes");
        verdict
    }

    fn check_name(&self, name: &str, verdict: &mut Verdict) {
        let mut grants: Vec<(i64, Duration, Duration)> = Vec::new();
        for event in &self.events {
            if let Event::Granted {
                name: of,
                fence,
                asked,
                at,
            } = event
                && of == name
            {
                grants.push((*fence, *asked, *at));
            }
        }
        verdict.grants += grants.len();
        grants.sort_unstable();
        for pair in grants.windows(2) {
            let (older, newer) = (pair[0], pair[1]);
            assert_ne!(older.0, newer.0, "{name}: one fence for two grants");
        }
        // Whoever was granted before another one asked has the smaller fence: walking from the
        // greatest fence down, nobody asked after a later fence's grant was known.
        let mut earliest_grant_above = Duration::MAX;
        for (fence, asked, at) in grants.iter().rev() {
            assert!(
                *asked <= earliest_grant_above,
                "{name}: fence {fence} was asked for after a greater one was granted"
            );
            earliest_grant_above = earliest_grant_above.min(*at);
        }
        for event in &self.events {
            let Event::Write {
                name: of,
                fence,
                checked,
                at,
            } = event
            else {
                continue;
            };
            if of != name {
                continue;
            }
            verdict.writes += 1;
            let newer = grants
                .iter()
                .filter(|(other, ..)| other > fence)
                .map(|(.., at)| *at)
                .min();
            let Some(newer) = newer else { continue };
            assert!(
                *checked < newer,
                "{name}: fence {fence} was still called held {:?} after another grant",
                (*checked).checked_sub(newer).unwrap()
            );
            verdict.overlaps += usize::from(*at > newer);
        }
    }
}

impl Event {
    fn name(&self) -> &str {
        match self {
            Self::Granted { name, .. } | Self::Write { name, .. } | Self::Done { name, .. } => name,
        }
    }
}

/// The checker itself must not be blind: each violation, made on purpose.
pub(crate) fn the_checker_sees_violations() {
    let ms = Duration::from_millis;
    let granted = |fence, asked, at| Event::Granted {
        name: "a".into(),
        fence,
        asked: ms(asked),
        at: ms(at),
    };
    let write = |fence, checked, at| Event::Write {
        name: "a".into(),
        fence,
        checked: ms(checked),
        at: ms(at),
    };
    let judge = |events: &[Event]| {
        let mut history = History::default();
        for event in events {
            history.record(event.to_string().parse().unwrap());
        }
        std::panic::catch_unwind(|| history.check())
    };
    let fine = judge(&[
        granted(5, 0, 1),
        write(5, 2, 3),
        granted(6, 4, 5),
        write(5, 3, 9),
    ])
    .unwrap();
    assert_eq!(
        (fine.grants, fine.writes, fine.overlaps, fine.refused),
        (2, 2, 1, 1)
    );
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let twice = judge(&[granted(5, 0, 1), granted(5, 2, 3)]).is_err();
    let falling = judge(&[granted(6, 0, 1), granted(5, 2, 3)]).is_err();
    let both = judge(&[granted(5, 0, 1), granted(6, 2, 3), write(5, 4, 5)]).is_err();
    std::panic::set_hook(hook);
    assert!(twice && falling && both, "{twice} {falling} {both}");
}
