//! Several servers, all silent.

use tokio::net::TcpListener;
use tokio::select;

use super::*;
use crate::model::FaultKind;
use crate::store::postgres::Postgres;

const PATIENCE: Duration = Duration::from_mins(1);

async fn servers(timeout: Duration) -> ([TcpListener; 3], Link) {
    let bind = || async { TcpListener::bind("127.0.0.1:0").await.unwrap() };
    let servers = [bind().await, bind().await, bind().await];
    let hosts = servers.each_ref().map(|server| {
        let port = server.local_addr().unwrap().port();
        format!("127.0.0.1:{port}")
    });
    let url = format!("postgres://user@{}/db", hosts.join(","));
    let postgres = Postgres::from_url(&url).unwrap();
    (servers, Link::new(postgres, timeout, &Arc::default()))
}

/// Which server is dialed first.
async fn asked([a, b, c]: &[TcpListener; 3]) -> usize {
    select! {
        _ = a.accept() => 0,
        _ = b.accept() => 1,
        _ = c.accept() => 2,
    }
}

/// Dials until a server is reached, then drops the future.
async fn cut_off(servers: &[TcpListener; 3], link: &Link) -> usize {
    select! {
        _ = link.dial(false) => panic!("no server speaks"),
        asked = asked(servers) => asked,
    }
}

#[tokio::test]
async fn a_dial_that_is_cut_off_is_followed_by_one_to_the_next_server() {
    let (servers, link) = servers(PATIENCE).await;
    for server in [0, 1, 2, 0, 1] {
        assert_eq!(cut_off(&servers, &link).await, server);
    }
}

#[tokio::test]
async fn every_server_is_asked_once_in_turn() {
    let (servers, link) = servers(PATIENCE).await;
    assert_eq!(cut_off(&servers, &link).await, 0);
    let mut order = Vec::new();
    let fault = select! {
        made = link.dial(false) => made.expect_err("no server speaks"),
        // Each hangs up at once.
        () = async { loop { order.push(asked(&servers).await); } } => unreachable!("it goes on"),
    };
    assert_eq!(fault.kind, FaultKind::Disconnected);
    assert_eq!(order, [1, 2, 0]);
}

#[tokio::test]
async fn a_silent_server_leaves_the_others_their_share_of_the_time() {
    let (servers, link) = servers(Duration::from_millis(600)).await;
    // The first server accepts and stays silent.
    let (silent, next) = (&servers[0], &servers[1]);
    let asked = async {
        let heard = silent.accept().await.unwrap();
        let _next = next.accept().await.unwrap();
        heard
    };
    select! {
        _ = link.dial(false) => panic!("the second one was not asked"),
        _ = asked => {}
    }
}
