//! Galera: what is committed through one node is certified against what the others commit.

use std::sync::Arc;
use std::time::Duration;

use libtest_mimic::Trial;
use rowlock::{Error, Rowlock};
use rowlock_test::{eventually, loss, patience, renewed, take};
use sqlx::{AssertSqlSafe, Connection, MySqlConnection, MySqlPool};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::cluster::Cluster;
use crate::trial;

/// The concurrent first starts, three through each node.
const STARTS: usize = 9;

pub(crate) fn trials(cluster: Option<&Arc<Cluster>>) -> Vec<Trial> {
    vec![
        trial("first_starts_through_all_nodes", cluster, first_starts),
        trial("a_name_has_one_holder", cluster, one_holder),
        trial(
            "a_takeover_elsewhere_and_a_pinned_commit_exclude_each_other",
            cluster,
            takeover,
        ),
        trial("a_pinned_commit_in_time_succeeds", cluster, pinned_commit),
        trial("a_pin_through_another_node_finds_its_lease", cluster, pins),
        trial(
            "what_a_transaction_wrote_before_its_lock_is_committed_with_it",
            cluster,
            written_before,
        ),
        trial("connections_to_different_nodes", cluster, balanced),
        trial("a_node_without_its_cluster", cluster, isolated),
    ]
}

pub(crate) async fn number(pool: &MySqlPool, sql: &'static str) -> i64 {
    sqlx::query_scalar(sql).fetch_one(pool).await.unwrap()
}

/// `ROWLOCK_CLUSTER_STARTS` (default 3) is how often.
async fn first_starts(cluster: Arc<Cluster>) {
    let rounds =
        std::env::var("ROWLOCK_CLUSTER_STARTS").map_or(3, |text| text.parse().expect("a number"));
    for _ in 0..rounds {
        let db = cluster.database().await;
        let start = Arc::new(tokio::sync::Barrier::new(STARTS));
        let mut clients = JoinSet::new();
        for number in 0..STARTS {
            let (url, start) = (db.url(number % 3).to_owned(), Arc::clone(&start));
            clients.spawn(async move {
                start.wait().await;
                Rowlock::connect(&url).await
            });
        }
        let mut applied = Vec::new();
        while let Some(client) = clients.join_next().await {
            let client = client.unwrap().expect("a first start");
            applied.extend_from_slice(client.admin().applied_migrations());
            let held = client.lock("a").acquire().await.unwrap();
            let _ = loss(held.release().await);
        }
        applied.sort();
        let once = applied.windows(2).all(|pair| pair[0] != pair[1]);
        assert!(once && !applied.is_empty(), "each by one: {applied:?}");
        db.remove().await;
    }
}

async fn one_holder(cluster: Arc<Cluster>) {
    let db = cluster.database().await;
    let mut tasks = JoinSet::new();
    for node in 0..3 {
        let (rowlock, pool) = db.at(node).await;
        if node == 0 {
            let table = "CREATE TABLE counter (n BIGINT NOT NULL PRIMARY KEY)";
            sqlx::raw_sql(table).execute(&pool).await.unwrap();
        }
        tasks.spawn(async move {
            for _ in 0..30 {
                let held = rowlock.lock("a").acquire().await.unwrap();
                // Two holders insert the same number.
                let next = "INSERT INTO counter SELECT COALESCE(MAX(n), 0) + 1 FROM counter";
                let sync = "SET SESSION wsrep_sync_wait = 15";
                let mut conn = pool.acquire().await.unwrap();
                sqlx::raw_sql(sync).execute(&mut *conn).await.unwrap();
                sqlx::raw_sql(next).execute(&mut *conn).await.unwrap();
                let _ = loss(held.release().await);
            }
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
    db.remove().await;
}

async fn ledger(pool: &MySqlPool) {
    let table = "CREATE TABLE ledger (who VARCHAR(9) NOT NULL PRIMARY KEY)";
    sqlx::raw_sql(table).execute(pool).await.unwrap();
}

/// The lease runs out while its transaction is open, and another node grants the name.
async fn takeover(cluster: Arc<Cluster>) {
    let db = cluster.database().await;
    let (first, pool) = db.at(0).await;
    let (second, other) = db.at(1).await;
    ledger(&pool).await;
    // What the other node has committed comes here a little later, and the transaction commits in between or not.
    let mut round = 0;
    while round < 20 {
        let held = take(&first, "a", Duration::from_millis(600)).await;
        let mut tx = pool.begin().await.unwrap();
        let late = "INSERT INTO ledger VALUES ('late')";
        sqlx::raw_sql(late).execute(&mut *tx).await.unwrap();
        match held.pin(&mut tx).await {
            Ok(()) => round += 1,
            // On a busy machine the lease has run out before.
            Err(Error::Lost { .. }) => {
                tx.rollback().await.unwrap();
                continue;
            }
            Err(error) => panic!("{error}"),
        }
        let taken = second.lock("a").wait(patience());
        let taken = taken.acquire().await.unwrap();
        assert!(taken.fence() > held.fence());
        let committed = tx.commit().await;
        assert!(
            committed.is_err(),
            "round {round}: the name was somebody else's already"
        );
        assert_eq!(number(&other, "SELECT COUNT(*) FROM ledger").await, 0);
        let _ = loss(taken.release().await);
    }
    db.remove().await;
}

/// Of the lease "a", in microseconds, as everybody sees it.
async fn expiry(pool: &MySqlPool) -> i64 {
    let expiry = "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', expires_at)
                  FROM rowlock_lock WHERE name = 'a'";
    number(pool, expiry).await
}

/// Beside renewals of the same lease, which pass it over, and of other names.
async fn pinned_commit(cluster: Arc<Cluster>) {
    let db = cluster.database().await;
    let (first, pool) = db.at(0).await;
    ledger(&pool).await;
    let ttl = Duration::from_secs(6);
    let held = take(&first, "a", ttl).await;
    let other = take(&first, "b", ttl / 4).await;
    for _ in 0..2 {
        let mut tx = pool.begin().await.unwrap();
        let in_time = "INSERT INTO ledger (who) SELECT COUNT(*) FROM ledger";
        sqlx::raw_sql(in_time).execute(&mut *tx).await.unwrap();
        held.pin(&mut tx).await.unwrap();
        held.pin(&mut tx).await.unwrap();
        let pinned = expiry(&pool).await;
        // The turn of both comes meanwhile, at a third of the time.
        while held.remaining() > ttl / 2 {
            renewed(&other).await;
            assert_eq!(expiry(&pool).await, pinned, "renewed while it was pinned");
        }
        tx.commit().await.expect("it was pinned in time");
        // By a second, and not only by the pin's microsecond.
        eventually("it is renewed again", || async {
            expiry(&pool).await > pinned + 1_000_000
        })
        .await;
    }
    for node in 0..2 {
        let (_, pool) = db.at(node).await;
        eventually("both commits are there", || async {
            number(&pool, "SELECT COUNT(*) FROM ledger").await == 2
        })
        .await;
    }
    assert!(held.is_held());
    let _ = loss(held.release().await);
    let _ = loss(other.release().await);
    db.remove().await;
}

/// What one node has committed, another one applies a little later: it may roll the transaction back meanwhile, but
/// the lease is not lost.
async fn pins(cluster: Arc<Cluster>) {
    let db = cluster.database().await;
    let (first, _) = db.at(0).await;
    let (_second, other) = db.at(1).await;
    for number in 0..200 {
        let held = take(&first, &format!("a{}", number % 3), Duration::from_secs(30)).await;
        loop {
            let mut tx = other.begin().await.unwrap();
            match held.pin(&mut tx).await {
                Ok(()) if tx.commit().await.is_ok() => break,
                Ok(()) | Err(Error::Conflict { .. }) => {}
                Err(error) => panic!("{number}: {error:?}"),
            }
        }
        let _ = loss(held.release().await);
    }
    db.remove().await;
}

/// A node may abort the transaction in the middle of a call.
async fn written_before(cluster: Arc<Cluster>) {
    let db = cluster.database().await;
    let (_, pool) = db.at(0).await;
    let table = "CREATE TABLE written (id INTEGER NOT NULL PRIMARY KEY)";
    sqlx::raw_sql(table).execute(&pool).await.unwrap();
    let mut tasks = JoinSet::new();
    for task in 0..6 {
        let (rowlock, pool) = db.at(task % 3).await;
        tasks.spawn(async move {
            let mut committed = Vec::new();
            for id in task * 1_000..task * 1_000 + 300 {
                let mut tx = pool.begin().await.unwrap();
                let write = AssertSqlSafe(format!("INSERT INTO written VALUES ({id})"));
                sqlx::raw_sql(write).execute(&mut *tx).await.unwrap();
                let locked = rowlock.in_tx(&mut tx).lock("a").try_acquire().await;
                let is_locked = matches!(locked, Ok(Some(_)));
                if is_locked && tx.commit().await.is_ok() {
                    committed.push(i64::try_from(id).unwrap());
                }
            }
            committed
        });
    }
    let mut committed: Vec<i64> = tasks.join_all().await.into_iter().flatten().collect();
    committed.sort_unstable();
    let wait = "SET SESSION wsrep_sync_wait = 1";
    let mut conn = pool.acquire().await.unwrap();
    sqlx::raw_sql(wait).execute(&mut *conn).await.unwrap();
    let written = sqlx::query_scalar("SELECT id FROM written ORDER BY id");
    let written: Vec<i64> = written.fetch_all(&mut *conn).await.unwrap();
    assert_eq!(written, committed);
    drop(conn);
    db.remove().await;
}

/// A balancer on a port of its own: each connection goes to the next node.
async fn balancer(urls: &[String]) -> u16 {
    let address = |url: &String| {
        url.split(['@', '/'])
            .nth(3)
            .expect("scheme://user@host/")
            .to_owned()
    };
    let nodes: Vec<String> = urls.iter().map(address).collect();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        for node in nodes.iter().cycle() {
            let (mut client, _) = listener.accept().await.unwrap();
            let mut server = TcpStream::connect(node).await.unwrap();
            tokio::spawn(async move { copy_bidirectional(&mut client, &mut server).await });
        }
    });
    port
}

/// What one connection of a client has committed, the next one finds.
async fn balanced(cluster: Arc<Cluster>) {
    let db = cluster.database().await;
    let port = balancer(db.urls()).await;
    let url = format!("mysql://app:pw@127.0.0.1:{port}/{}", db.name());
    let rowlock = Rowlock::connect(&url).await.unwrap();
    let renewed = take(&rowlock, "renewed", Duration::from_secs(2)).await;
    for round in 0..100 {
        let name = format!("a{}", round % 7);
        let held = take(&rowlock, &name, Duration::from_secs(30)).await;
        let seen = rowlock.inspect(&name).await.unwrap();
        assert_eq!(seen.expect("it is held").fence, held.fence(), "{round}");
        let _ = loss(held.release().await);
        assert!(rowlock.inspect(&name).await.unwrap().is_none(), "{round}");
    }
    assert!(renewed.is_held());
    let _ = loss(renewed.release().await);
    db.remove().await;
}

/// Isolates a node, or ends that. A node may cut its connections when it loses its cluster, and then takes those only
/// that ask for no database.
async fn isolate(node: &str, word: u8) {
    let (server, _) = node.rsplit_once('/').unwrap();
    let set = format!("SET GLOBAL wsrep_provider_options = 'gmcast.isolate = {word}'");
    eventually("the node is told", async || {
        let Ok(mut conn) = MySqlConnection::connect(server).await else {
            return false;
        };
        let set = sqlx::raw_sql(AssertSqlSafe(set.clone()));
        set.execute(&mut conn).await.is_ok()
    })
    .await;
}

/// It still thinks that it is in, for some seconds.
async fn is_alone(node: &str) -> bool {
    let (server, _) = node.rsplit_once('/').unwrap();
    let Ok(mut conn) = MySqlConnection::connect(server).await else {
        return false;
    };
    let status = "SELECT COUNT(*) FROM information_schema.global_status \
                  WHERE variable_name = 'wsrep_cluster_status' AND variable_value = 'non-Primary'";
    let alone = sqlx::query_scalar::<_, i64>(status).fetch_one(&mut conn);
    alone.await.is_ok_and(|alone| alone == 1)
}

/// What it says is a broken connection, not a refusal: operations go on when it is back.
async fn isolated(cluster: Arc<Cluster>) {
    let db = cluster.database().await;
    let (rowlock, _) = db.at(2).await;
    let timeout = Duration::from_secs(2);
    let short = Rowlock::builder().operation_timeout(timeout);
    let short = short.connect(db.url(2)).await.unwrap();
    let held = take(&rowlock, "a", Duration::from_mins(1)).await;
    isolate(db.url(2), 1).await;
    let alone = async || is_alone(db.url(2)).await;
    eventually("the node knows that it is alone", alone).await;
    let refused = short.lock("b").try_acquire().await;
    let waiting = tokio::spawn({
        let rowlock = rowlock.clone();
        async move {
            loop {
                match rowlock.lock("b").try_acquire().await {
                    Ok(granted) => break granted.expect("free"),
                    Err(Error::Unreachable { .. } | Error::OutcomeUnknown { .. }) => {}
                    Err(error) => panic!("{error:?}"),
                }
            }
        }
    });
    isolate(db.url(2), 0).await;
    let error = refused.unwrap_err();
    println!("a node without its cluster: {error}");
    assert!(
        matches!(
            error,
            Error::Unreachable { .. } | Error::OutcomeUnknown { .. }
        ),
        "{error:?}"
    );
    let granted = waiting.await.unwrap();
    let _ = loss(granted.release().await);
    let _ = loss(held.release().await);
    db.remove().await;
}
