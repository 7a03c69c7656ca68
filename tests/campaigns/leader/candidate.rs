//! A process that stands for the election, and acts while it leads.

use std::ops::ControlFlow;
use std::time::Duration;

use rand::Rng;
use rowlock::{Error, Rowlock};
use rowlock_recipes::leader::{Election, Leadership};
use rowlock_test::{App, Kind, on_app};
use sqlx::AssertSqlSafe;

use super::NAME;
use crate::role::Role;

/// What a leader does before it acts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) enum Means {
    /// It pins its leadership in the transaction in which it acts.
    Pinned,
    /// It looks whether it leads, works a little, and acts.
    Checked,
}

/// One candidate.
struct Candidate {
    rowlock: Rowlock,
    app: App,
    number: i64,
}

/// Stands for the election until the process is killed.
pub(crate) async fn stand(role: &Role, number: i64, means: Means) {
    let me = Candidate {
        rowlock: role.connect().await,
        app: App::connect(&role.url, 2).await,
        number,
    };
    let election = Election::new(&me.rowlock, NAME).ttl(role.ttl);
    let election = election.candidate(number.to_string());
    match means {
        Means::Pinned => me.lead(&election).await,
        Means::Checked => me.lead_without_a_pin(&election).await,
    }
}

impl Candidate {
    /// Nothing but the pin, and the end of the work, stops its acts.
    async fn lead(&self, election: &Election) {
        let work = async |leadership: Leadership| loop {
            match self.act(&leadership).await {
                Ok(()) => {}
                Err(error @ Error::Lost { .. }) => return Err::<ControlFlow<()>, _>(error),
                // The server has ended the transaction of a paused leader, for example.
                Err(error) => eprintln!("candidate: {error}"),
            }
            pause(10).await;
        };
        let ended = election.lead(work).await;
        panic!("{ended:?}");
    }

    /// One act, in a transaction that pins the leadership before it or after it.
    async fn act(&self, leadership: &Leadership) -> Result<(), Error> {
        let act = self.statement(leadership.term());
        let pins_first = rand::rng().random_bool(0.5);
        let end_idle = Kind::of(self.rowlock.engine()).end_idle;
        let retry = self.rowlock.retry();
        on_app!(&self.app, pool => {
            retry.run(pool, |mut tx| {
                let act = act.clone();
                async move {
                    if let Some(end_idle) = end_idle {
                        sqlx::raw_sql(end_idle).execute(&mut *tx).await?;
                    }
                    if pins_first {
                        leadership.pin(&mut tx).await?;
                    }
                    sqlx::raw_sql(AssertSqlSafe(act)).execute(&mut *tx).await?;
                    if !pins_first {
                        leadership.pin(&mut tx).await?;
                    }
                    Ok(())
                }
            }).await
        })
    }

    async fn lead_without_a_pin(&self, election: &Election) {
        loop {
            let leadership = election.campaign().await.unwrap();
            while leadership.is_leading() {
                // The work between the check and the act, in which it is paused.
                pause(30).await;
                let act = AssertSqlSafe(self.statement(leadership.term()));
                let acted: Result<(), sqlx::Error> = on_app!(&self.app, pool => {
                    sqlx::raw_sql(act).execute(pool).await.map(|_| ())
                });
                if let Err(error) = acted {
                    eprintln!("candidate: {error}");
                }
            }
        }
    }

    fn statement(&self, term: i64) -> String {
        let (number, now) = (self.number, Kind::of(self.rowlock.engine()).micros);
        format!("INSERT INTO act (term, candidate, at) VALUES ({term}, {number}, {now})")
    }
}

/// Work, for at most so many milliseconds.
async fn pause(longest: u64) {
    let work = rand::rng().random_range(1..=longest);
    tokio::time::sleep(Duration::from_millis(work)).await;
}
