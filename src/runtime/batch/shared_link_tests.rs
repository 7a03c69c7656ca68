//! Several links that share one connection.

use std::future::pending;

use tokio::net::TcpListener;
use tokio::select;

use super::*;
use crate::runtime::batch::endpoints::Endpoints;
use crate::store::postgres::Postgres;
use crate::store::sqlite::Sqlite;

const PATIENCE: Duration = Duration::from_mins(1);
const SOON: Duration = Duration::from_millis(100);

fn link(dir: &tempfile::TempDir) -> Link {
    let url = format!("sqlite:{}/a.db?mode=rwc", dir.path().display());
    let endpoints: Arc<Endpoints> = Arc::default();
    Link::new(Sqlite::from_url(&url).unwrap(), PATIENCE, &endpoints)
}

async fn version(link: &mut Link, bound: Duration) -> Result<Option<i64>, Fault> {
    let verb = async |store: &mut dyn Store| store.queue_version().await;
    link.run("look", bound, verb).await
}

#[tokio::test]
async fn links_that_share_a_connection_make_one() {
    let dir = tempfile::tempdir().unwrap();
    let mut one = link(&dir);
    let mut other = one.beside();
    one.connect().await.unwrap();
    let number = one.number();
    version(&mut other, PATIENCE).await.unwrap();
    assert_eq!(other.number(), number);
    // A link that ends leaves it to the others.
    one.close().await;
    version(&mut other, PATIENCE).await.unwrap();
    assert_eq!(other.number(), number);
}

#[tokio::test]
async fn an_urgent_call_waits_for_a_short_one_and_cuts_off_one_that_gets_no_answer() {
    let dir = tempfile::tempdir().unwrap();
    let mut one = link(&dir);
    let mut urgent = one.beside().urgent();
    one.connect().await.unwrap();
    let number = one.number();
    let (short, soon) = tokio::join!(version(&mut one, PATIENCE), version(&mut urgent, PATIENCE));
    assert!(short.is_ok() && soon.is_ok());
    assert_eq!(urgent.number(), number);

    let silent = async |_: &mut dyn Store| pending::<Result<(), Fault>>().await;
    let silent = one.run("silent", PATIENCE, silent);
    let (silent, soon) = tokio::join!(silent, version(&mut urgent, PATIENCE));
    assert!(silent.is_err(), "it was cut off");
    assert!(
        soon.is_err() && urgent.sent().is_none(),
        "the connection has gone"
    );
    urgent.connect().await.unwrap();
    version(&mut urgent, PATIENCE).await.unwrap();
    assert_ne!(urgent.number(), number, "nobody uses it again");
}

#[tokio::test]
async fn an_urgent_login_does_not_wait_for_one_that_gets_no_answer() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = server.local_addr().unwrap().port();
    let postgres = Postgres::from_url(&format!("postgres://user@127.0.0.1:{port}/db")).unwrap();
    let one = Link::new(postgres, PATIENCE, &Arc::default());
    let urgent = one.beside().urgent();
    let twice = async {
        let first = server.accept().await.unwrap();
        let second = server.accept().await.unwrap();
        drop((first, second));
    };
    let (first, _, ()) = tokio::join!(one.dial(false), urgent.dial(false), twice);
    assert!(first.is_err(), "it was cut off");
}

#[tokio::test]
async fn an_urgent_call_goes_before_those_that_came_first() {
    let dir = tempfile::tempdir().unwrap();
    let mut one = link(&dir);
    one.connect().await.unwrap();
    let (mut other, mut urgent) = (one.beside(), one.beside().urgent());
    let order = std::sync::Mutex::new(Vec::new());
    let call = async |link: &mut Link, name| {
        let verb = async |_: &mut dyn Store| {
            order.lock().unwrap().push(name);
            tokio::task::yield_now().await;
            tokio::task::yield_now().await;
            Ok(())
        };
        link.run(name, PATIENCE, verb).await.unwrap();
    };
    tokio::join!(
        call(&mut one, "first"),
        call(&mut other, "second"),
        call(&mut urgent, "urgent")
    );
    assert_eq!(*order.lock().unwrap(), ["first", "urgent", "second"]);
}

/// A call that hangs, again and again.
async fn hangs(mut link: Link) {
    let silent = async |_: &mut dyn Store| pending::<Result<(), Fault>>().await;
    loop {
        if link.connect().await.is_ok() {
            let _ = link.run("silent", PATIENCE, silent).await;
        }
    }
}

#[tokio::test]
async fn urgent_calls_come_through_while_three_links_hang() {
    let dir = tempfile::tempdir().unwrap();
    let one = link(&dir);
    let mut urgent = one.beside().urgent();
    let all_hang = async {
        tokio::join!(
            hangs(one.beside()),
            hangs(one.beside()),
            hangs(one.beside())
        );
    };
    let renewals = async {
        for _ in 0..5 {
            // The first attempt may find that the connection has gone with the call that was cut off.
            let mut attempts = 0;
            loop {
                attempts += 1;
                urgent.connect().await.unwrap();
                let done = version(&mut urgent, PATIENCE).await;
                if done.is_ok() {
                    break;
                }
            }
            assert!(attempts <= 2, "{attempts} attempts");
            tokio::task::yield_now().await;
        }
    };
    select! {
        renewed = timeout(PATIENCE, renewals) => renewed.expect("each has its turn"),
        () = all_hang => unreachable!("they hang for ever"),
    }
}

#[tokio::test]
async fn a_call_that_waits_in_vain_was_not_sent() {
    let dir = tempfile::tempdir().unwrap();
    let mut one = link(&dir);
    one.connect().await.unwrap();
    let mut other = one.beside();
    let silent = async |_: &mut dyn Store| pending::<Result<(), Fault>>().await;
    let silent = one.run("silent", SOON * 2, silent);
    let (silent, late) = tokio::join!(silent, version(&mut other, SOON));
    assert!(silent.is_err() && late.is_err());
    assert!(one.sent().is_some() && other.sent().is_none());
    // The connection has gone with the call that was cut off.
    assert!(version(&mut other, PATIENCE).await.is_err() && other.sent().is_none());
    other.connect().await.unwrap();
    assert!(version(&mut other, PATIENCE).await.is_ok() && other.sent().is_some());
}

#[tokio::test]
async fn a_connection_that_somebody_keeps_is_not_idle() {
    let dir = tempfile::tempdir().unwrap();
    let mut one = link(&dir);
    let mut other = one.beside();
    assert_eq!(one.idle_at(), None, "there is none");
    one.connect().await.unwrap();
    assert!(other.idle_at().is_some());
    one.keep(true);
    assert_eq!(other.idle_at(), None);
    other.keep(true);
    one.keep(false);
    assert_eq!(one.idle_at(), None);
    other.keep(false);
    assert!(one.idle_at().is_some());
    other.close_idle().await;
    assert!(one.is_connected(), "it was used just now");
}

/// A verb that takes so long.
async fn takes(link: &mut Link, bound: Duration, time: Duration) -> Result<(), Fault> {
    let verb = async |_: &mut dyn Store| {
        tokio::time::sleep(time).await;
        Ok(())
    };
    link.run("slow", bound, verb).await
}

#[tokio::test]
async fn the_bound_of_an_urgent_call_does_not_run_while_it_waits() {
    let dir = tempfile::tempdir().unwrap();
    let mut one = link(&dir);
    let mut urgent = one.beside().urgent();
    let bound = Duration::from_millis(250);
    let part = bound * 3 / 5;
    // (A busy machine may be late, and the call that came first cut off.)
    for _ in 0..10 {
        urgent.precedence = None;
        one.connect().await.unwrap();
        let number = urgent.number();
        let (_, soon) = tokio::join!(
            biased;
            takes(&mut one, PATIENCE, part),
            takes(&mut urgent, bound, part)
        );
        if soon.is_ok() && urgent.number() == number {
            return;
        }
    }
    panic!("the wait and the call took longer than the bound of the call, and it was cut off");
}

#[tokio::test]
async fn a_call_that_was_cut_off_has_more_time_when_it_comes_again() {
    let dir = tempfile::tempdir().unwrap();
    let (one, mut urgent) = (link(&dir), link(&dir).urgent());
    urgent.slot = Arc::clone(&one.slot);
    let mut other = one.beside();
    let renewals = async {
        loop {
            if urgent.connect().await.is_ok() {
                let _ = version(&mut urgent, Duration::from_secs(2)).await;
            }
            tokio::time::sleep(SOON / 10).await;
        }
    };
    let slow = async {
        for attempt in 0..6 {
            if other.connect().await.is_ok() && takes(&mut other, PATIENCE, SOON * 8).await.is_ok()
            {
                return attempt;
            }
        }
        panic!("it was cut off each time");
    };
    select! {
        attempts = slow => assert!(attempts > 0, "the first time, it was cut off"),
        () = renewals => unreachable!("they go on for ever"),
    }
}

#[tokio::test]
async fn urgent_calls_without_a_pause_leave_a_turn_to_others() {
    let dir = tempfile::tempdir().unwrap();
    let mut one = link(&dir);
    one.connect().await.unwrap();
    let mut urgent = one.beside().urgent();
    let renewals = async {
        loop {
            urgent.connect().await.unwrap();
            takes(&mut urgent, PATIENCE, SOON / 100).await.unwrap();
        }
    };
    select! {
        biased;
        () = renewals => unreachable!("they go on for ever"),
        looked = version(&mut one, PATIENCE / 4) => assert!(looked.is_ok(), "it had no turn"),
    }
}

#[tokio::test]
async fn an_urgent_call_that_cannot_wait_long_cuts_a_call_off_early() {
    let dir = tempfile::tempdir().unwrap();
    let mut one = link(&dir);
    let mut urgent = one.beside().urgent();
    for _ in 0..10 {
        one.connect().await.unwrap();
        let slow = takes(&mut one, PATIENCE, SOON * 2);
        let (slow, _) = tokio::join!(biased; slow, version(&mut urgent, SOON / 2));
        if slow.is_err() {
            return;
        }
    }
    panic!("it had its 250 ms each time");
}
