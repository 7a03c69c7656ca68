//! Private servers for one race. All of them start before the first run.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rowlock_test::{Own, with_database};
use sqlx::{AssertSqlSafe, Connection, MySqlConnection, PgConnection};
use tempfile::TempDir;

use crate::Failure;
use crate::network::Network;

/// Where the locks of a contender are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    Postgres,
    MariaDb,
    MySql,
    Sqlite,
    /// Redis without persistence.
    Redis,
    /// Redis with `appendfsync always`.
    RedisAlways,
    Etcd,
    ZooKeeper,
}

impl Place {
    /// The server as `docker/servers.sh` calls it.
    fn server(self) -> Option<&'static str> {
        match self {
            Self::Postgres => Some("postgres"),
            Self::MariaDb => Some("mariadb"),
            Self::MySql => Some("mysql"),
            Self::Sqlite => None,
            Self::Redis | Self::RedisAlways => Some("redis"),
            Self::Etcd => Some("etcd"),
            Self::ZooKeeper => Some("zookeeper"),
        }
    }
}

/// The servers of the race. Dropping this stops them.
#[derive(Debug)]
pub(crate) struct Servers {
    started: BTreeMap<Place, Own>,
    networks: Vec<Network>,
    databases: BTreeSet<String>,
    /// SQLite's files, and the file of the referee.
    folder: TempDir,
}

impl Servers {
    /// Starts the servers of `places`, all at the same time. If they are not `durable`, they do not wait for the disk,
    /// except for Redis with `appendfsync always`.
    ///
    /// # Panics
    ///
    /// A server does not start. The message has its log.
    pub(crate) fn start(
        places: impl IntoIterator<Item = Place>,
        durable: bool,
    ) -> Result<Self, Failure> {
        let places: BTreeSet<_> = places.into_iter().collect();
        let folder = tempfile::Builder::new().prefix("rowlock-race-").tempdir()?;
        let starts: Vec<_> = places
            .into_iter()
            .filter_map(|place| Some((place, place.server()?)))
            .map(|(place, kind)| {
                let start = move || match place {
                    Place::RedisAlways => Own::durable(kind),
                    Place::Redis => Own::start(kind, &[]),
                    _ if durable => Own::durable(kind),
                    _ => Own::start(kind, &[]),
                };
                (place, std::thread::spawn(start))
            })
            .collect();
        let mut started = BTreeMap::new();
        let mut failed = Vec::new();
        for (place, start) in starts {
            match start.join() {
                Ok(own) => drop(started.insert(place, own)),
                // The thread has printed why.
                Err(_) => failed.push(format!("{place:?}")),
            }
        }
        if failed.is_empty() {
            let databases = BTreeSet::new();
            return Ok(Self {
                started,
                networks: Vec::new(),
                databases,
                folder,
            });
        }
        Err(format!("{} did not start; the reason is above", failed.join(", ")).into())
    }

    /// Puts a network in front of each server.
    pub(crate) fn connect_through_networks(&mut self) -> Result<(), Failure> {
        for own in self.started.values_mut() {
            let (network, url) = Network::before(&own.url)?;
            self.networks.push(network);
            own.url = url;
        }
        Ok(())
    }

    /// Sets the time of a round trip through the networks.
    pub(crate) fn set_round_trip(&self, round_trip: Duration) {
        for network in &self.networks {
            network.set(round_trip);
        }
    }

    /// The folder of a server, which has its log.
    pub(crate) fn home(&self, place: Place) -> Result<&std::path::Path, Failure> {
        let server = self.started.get(&place).ok_or("this place has no server")?;
        Ok(server.dir.path())
    }

    /// The file of the referee, empty.
    pub(crate) fn referee(&self) -> Result<std::path::PathBuf, Failure> {
        let path = self.folder.path().join("referee");
        std::fs::write(&path, b"")?;
        Ok(path)
    }

    /// The URL of `place`; of its database `name`, if there is a name. Makes the database.
    pub(crate) async fn url(
        &mut self,
        place: Place,
        name: Option<&str>,
    ) -> Result<String, Failure> {
        let Some(server) = self.started.get(&place) else {
            let file = format!("{}.db", name.unwrap_or("race"));
            return Ok(format!(
                "sqlite:{}",
                self.folder.path().join(file).display()
            ));
        };
        let Some(name) = name else {
            return Ok(server.url.clone());
        };
        let url = with_database(&server.url, name);
        if self.databases.insert(url.clone()) {
            let sql = AssertSqlSafe(format!("CREATE DATABASE {name}"));
            if place == Place::Postgres {
                let mut conn = PgConnection::connect(&server.url).await?;
                sqlx::raw_sql(sql).execute(&mut conn).await?;
            } else {
                let mut conn = MySqlConnection::connect(&server.url).await?;
                sqlx::raw_sql(sql).execute(&mut conn).await?;
            }
        }
        Ok(url)
    }
}
