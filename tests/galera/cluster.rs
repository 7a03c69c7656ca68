//! The nodes that the tests share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rowlock::Rowlock;
use rowlock_test::{Own, eventually, with_database};
use sqlx::{AssertSqlSafe, Connection, MySqlConnection, MySqlPool};

/// Of the log of a node, when a test fails.
const LAST_LINES: usize = 40;

/// Three nodes.
pub(crate) struct Cluster {
    urls: Vec<String>,
    own: Option<Own>,
}

impl Cluster {
    pub(crate) fn start() -> Self {
        if let Ok(urls) = std::env::var("ROWLOCK_TEST_GALERA_URLS") {
            let urls: Vec<String> = urls.split(',').map(str::to_owned).collect();
            assert_eq!(urls.len(), 3, "a URL for each of three nodes");
            return Self { urls, own: None };
        }
        let own = Own::start("galera", &[]);
        Self {
            urls: own.url.lines().map(str::to_owned).collect(),
            own: Some(own),
        }
    }

    /// The last lines of each node's log.
    fn last_words(&self) -> String {
        let nodes = self.own.iter().flat_map(|own| {
            let log = |node| own.dir.path().join(format!("n{node}/log"));
            (1..=3).map(log)
        });
        let mut words = String::new();
        for log in nodes {
            let text = std::fs::read(&log).unwrap_or_default();
            let text = String::from_utf8_lossy(&text);
            let lines: Vec<&str> = text.lines().collect();
            let last = lines[lines.len().saturating_sub(LAST_LINES)..].join("\n");
            words.extend([&format!("\n{}:\n", log.display()), last.as_str()]);
        }
        words
    }

    /// An empty database on all nodes.
    pub(crate) async fn database(&self) -> Database {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("rl_{}_{count}", std::process::id());
        let mut admin = MySqlConnection::connect(&self.urls[0]).await.unwrap();
        let create = AssertSqlSafe(format!("CREATE DATABASE {name}"));
        sqlx::raw_sql(create).execute(&mut admin).await.unwrap();
        let urls = self.urls.iter().map(|url| with_database(url, &name));
        let urls: Vec<String> = urls.collect();
        for url in &urls {
            eventually("the database is on every node", || async {
                MySqlConnection::connect(url).await.is_ok()
            })
            .await;
        }
        Database { name, urls, admin }
    }
}

pub(crate) struct Database {
    name: String,
    urls: Vec<String>,
    admin: MySqlConnection,
}

impl Database {
    /// A client and a pool of the application at a node.
    pub(crate) async fn at(&self, node: usize) -> (Rowlock, MySqlPool) {
        let url = self.url(node);
        // What others have made may come a little later.
        (
            Rowlock::connect(url).await.unwrap(),
            MySqlPool::connect(url).await.unwrap(),
        )
    }

    /// The database at a node.
    pub(crate) fn url(&self, node: usize) -> &str {
        &self.urls[node]
    }

    pub(crate) fn urls(&self) -> &[String] {
        &self.urls
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) async fn remove(mut self) {
        let drop = AssertSqlSafe(format!("DROP DATABASE {}", self.name));
        sqlx::raw_sql(drop).execute(&mut self.admin).await.unwrap();
    }
}

/// A test that fails tells what the nodes said last: it may be a node that has failed.
pub(crate) struct Watched(pub(crate) Arc<Cluster>);

impl Drop for Watched {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{}", self.0.last_words());
        }
    }
}
