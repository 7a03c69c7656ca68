//! 4 processes with 4 tasks each, which run the same keys again and again; every ~200 ms one process is killed with
//! SIGKILL, or paused with SIGSTOP for up to 3 s. The sessions of the application have the settings that once lost an
//! outcome: see [`Session`]. `ROWLOCK_FAULT_SECONDS` is how long.
//!
//! - [`worker`]: one process.
//! - [`judge`]: what must be true of the effects, and of what the processes were told.

mod judge;
mod worker;

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use rowlock::{Begun, Engine, Rowlock, Scope};
use rowlock_test::{Crew, Db, on_app, patience, request};

use crate::campaign::seconds;
use crate::pace::Pace;
use crate::role::{Part, Role};
pub(crate) use judge::the_judge_sees_violations;
use judge::{Effect, Event, Verdict, judge};
pub(crate) use worker::work;

const SCOPE: &str = "effects";
const PROCESSES: usize = 4;
/// Shorter than most pauses. (A paused process may be killed before its pause ends.)
const LEASE: Duration = Duration::from_millis(500);
const MAX_PAUSE: Duration = Duration::from_secs(3);
/// Far more than a key has.
const ATTEMPTS: u32 = 1_000;
/// More effects, more replays and more refusals than these prove something.
const LEAST: usize = 10;

/// What the application's sessions do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) enum Session {
    Plain,
    /// `SET timestamp`: the clock of the session stands still, long ago or far ahead.
    Frozen,
    /// The work of some transactions changes `search_path`: rowlock's tables are in the schema of a tenant, too.
    Tenant,
}

impl Session {
    fn worst_of(engine: Engine) -> Self {
        match engine {
            Engine::MySql | Engine::MariaDb => Self::Frozen,
            Engine::Postgres => Self::Tenant,
            _ => Self::Plain,
        }
    }
}

pub(crate) async fn run(engine: Engine) {
    let session = Session::worst_of(engine);
    let db = Db::new(engine).await;
    db.execute("CREATE TABLE effect (record BIGINT NOT NULL, token BIGINT NOT NULL, attempt BIGINT NOT NULL)")
        .await;
    if session == Session::Tenant {
        db.execute("CREATE SCHEMA tenant").await;
        let tenant = format!("{}?options=-csearch_path%3Dtenant", db.url);
        drop(Rowlock::connect(&tenant).await.unwrap()); // the tables
    }
    let role = Role {
        part: Part::Effects { session },
        url: db.url.clone(),
        ttl: LEASE,
    };
    let mut crew = Crew::start(std::iter::repeat_n(role.clone(), PROCESSES));
    let (mut events, mut counts) = (Vec::new(), Verdict::default());
    let until = Instant::now() + Duration::from_secs(seconds());
    let mut pace = Pace::new(120..280, 1);
    while Instant::now() < until
        || !is_enough(counts, session) && Instant::now() < until + patience()
    {
        while let Some((_, event)) = crew.next_event() {
            counts.add(event);
            events.push(event);
        }
        crew.wake();
        if pace.is_due(counts.news)
            && let Some(slot) = crew.strike(MAX_PAUSE)
        {
            crew.replace(slot, &role);
        }
        // The pace of the loop, which looks at clocks: strikes and the ends of pauses have a time, and no event.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let (kills, pauses) = (crew.kills, crew.pauses);
    events.extend(crew.end());

    let all = "SELECT record, token, attempt FROM effect";
    let effects: Vec<Effect> = on_app!(&db.app, pool => {
        sqlx::query_as(all).fetch_all(pool).await.unwrap()
    });
    let verdict = judge(&effects, &events).unwrap_or_else(|flaw| panic!("{engine}: {flaw}"));
    assert!(is_enough(verdict, session), "{verdict:?}");
    every_outcome_is_kept(&db, &effects, &events).await;
    println!(
        "effects {engine} ({session:?}): {} s, {kills} kills, {pauses} pauses; {} keys with one effect each, none with two; \
         {} told as new, {} replays, {} refused, {} late attempts",
        seconds(),
        effects.len(),
        verdict.news,
        verdict.replays,
        verdict.refused,
        verdict.late,
    );
    db.remove().await;
}

fn is_enough(counts: Verdict, session: Session) -> bool {
    counts.news > LEAST
        && counts.replays > LEAST
        && counts.late > 0
        && (session != Session::Tenant || counts.refused > LEAST)
}

/// A client that has seen no key is told the outcome of each effect; and no key without an effect is stuck.
async fn every_outcome_is_kept(db: &Db, effects: &[Effect], events: &[Event]) {
    let rowlock = db.rowlock().await;
    let idempotency = rowlock
        .idempotency()
        .max_attempts(ATTEMPTS)
        .wait(patience());
    let begun = events.iter().filter_map(|event| match event {
        Event::Begun { record, .. } => Some(*record),
        _ => None,
    });
    let tokens: HashMap<i64, i64> = effects
        .iter()
        .map(|(record, token, _)| (*record, *token))
        .collect();
    let records: BTreeSet<i64> = tokens.keys().copied().chain(begun).collect();
    for record in records {
        let begun = idempotency
            .begin(Scope(SCOPE).key(&record.to_string()), request())
            .await;
        match (begun.unwrap(), tokens.get(&record)) {
            (Begun::Replay(kept), Some(token)) => {
                assert_eq!(kept.parse_json::<i64>().unwrap(), *token, "{record}");
            }
            (Begun::New(_), None) => {}
            (other, token) => panic!("{record}: its effect is {token:?}, and it is {other:?}"),
        }
    }
}
