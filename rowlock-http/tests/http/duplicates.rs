//! Duplicates that wait for the running attempt: for how long, and what they get.

use std::time::{Duration, Instant};

use rowlock_test::eventually;

use crate::server::{Server, over_a_socket, send};

const LONG: Duration = Duration::from_mins(1);

/// Makes a running attempt of what was recorded, with a lease that lasts.
const RUNS_ELSEWHERE: &str = "UPDATE rowlock_idempotency SET state = 'running', outcome = NULL, \
                              content_type = NULL, done_at = NULL, retain_until = NULL, \
                              lease_until = attempted_at + 3600000000";

async fn patient() -> Server {
    Server::new(|layer| layer.max_wait(LONG)).await
}

over_a_socket! {
    async fn a_duplicate_that_prefers_to_wait_gets_the_response_when_it_comes() {
        let server = patient().await;
        let running = tokio::spawn(send(server.pay("k", "wait")));
        eventually("it runs", || async { server.shop.has_begun("k") }).await;
        let waits = |_| tokio::spawn(send(server.pay("k", "201").header("prefer", "wait=60")));
        let waiting: Vec<_> = (0..50).map(waits).collect();
        // It does not prefer that.
        send(server.pay("k", "201")).await.is_problem(409, "in-flight");
        // It is another request, and is told so at once.
        let other = server.pay("k", "201").body("101").header("prefer", "wait=60");
        send(other).await.is_problem(422, "key-reused");
        server.shop.gate.add_permits(1);
        let first = running.await.unwrap();
        first.is_new(201);
        for waiting in waiting {
            waiting.await.unwrap().is_replay_of(&first);
        }
        assert_eq!((server.shop.runs(), server.effects().await), (1, 1));
    }

    async fn a_wait_ends_at_the_clients_limit_and_at_the_servers() {
        for (limit, prefer, at_least) in [(LONG, "wait=1", 1_000), (Duration::from_millis(300), "wait=60", 300)] {
            let server = Server::new(|layer| layer.max_wait(limit)).await;
            let running = tokio::spawn(send(server.pay("k", "wait")));
            eventually("it runs", || async { server.shop.has_begun("k") }).await;
            let began = Instant::now();
            let late = send(server.pay("k", "201").header("prefer", prefer)).await;
            late.is_problem(409, "in-flight");
            assert!(began.elapsed() >= Duration::from_millis(at_least));
            assert!(late.retry_after() > 0);
            server.shop.gate.add_permits(1);
            running.await.unwrap().is_new(201);
        }
    }

    async fn a_wait_counts_only_where_the_server_allows_it_and_may_be_none() {
        for (allows, waits) in [(None, Duration::ZERO), (Some(LONG), LONG)] {
            let set = |layer: rowlock_http::IdempotencyLayer| match allows {
                Some(limit) => layer.max_wait(limit),
                None => layer,
            };
            let server = Server::with(|records| records.wait(waits), set).await;
            let running = tokio::spawn(send(server.pay("k", "wait")));
            eventually("it runs", || async { server.shop.has_begun("k") }).await;
            let prefer = if allows.is_some() { "wait=0" } else { "wait=60" };
            send(server.pay("k", "201").header("prefer", prefer)).await.is_problem(409, "in-flight");
            server.shop.gate.add_permits(1);
            running.await.unwrap().is_new(201);
        }
    }

    async fn only_so_many_wait() {
        let server = Server::new(|layer| layer.max_wait(LONG).max_waiting(2)).await;
        let running = tokio::spawn(send(server.pay("k", "wait")));
        eventually("it runs", || async { server.shop.has_begun("k") }).await;
        let waits = |_| tokio::spawn(send(server.pay("k", "201").header("prefer", "wait=60")));
        let waiting: Vec<_> = (0..5).map(waits).collect();
        eventually("all but two are answered", || async {
            waiting.iter().filter(|waiting| waiting.is_finished()).count() == 3
        })
        .await;
        server.shop.gate.add_permits(1);
        let first = running.await.unwrap();
        let mut replays = 0;
        for waiting in waiting {
            let answer = waiting.await.unwrap();
            replays += u32::from(answer.is_replay());
            assert!(answer.is_replay() || answer.status == 409, "{answer:?}");
        }
        assert_eq!((first.status, replays), (201, 2));
    }

    async fn a_duplicate_takes_its_turn_when_the_first_one_fails() {
        let server = patient().await;
        let running = tokio::spawn(send(server.pay("k", "wait 500")));
        eventually("it runs", || async { server.shop.has_begun("k") }).await;
        let waits = |_| tokio::spawn(send(server.pay("k", "201").header("prefer", "wait=60")));
        let waiting: Vec<_> = (0..10).map(waits).collect();
        server.shop.gate.add_permits(1);
        running.await.unwrap().is_new(500);
        let mut new = 0;
        for waiting in waiting {
            let answer = waiting.await.unwrap();
            assert_eq!(answer.status, 201, "{answer:?}");
            new += u32::from(!answer.is_replay());
        }
        assert_eq!((new, server.shop.runs()), (1, 2));
    }

    async fn the_lease_of_an_attempt_that_has_stopped_is_found_out_though_nobody_tells() {
        let server = patient().await;
        let running = tokio::spawn(send(server.pay("k", "wait")));
        eventually("it runs", || async { server.shop.has_begun("k") }).await;
        let waiting = tokio::spawn(send(server.pay("k", "201").header("prefer", "wait=60")));
        server.lapse().await;
        waiting.await.unwrap().is_new(201);
        server.shop.gate.add_permits(1);
        running.await.unwrap().is_problem(409, "in-flight");
    }

    async fn a_server_that_stops_cuts_a_wait_off() {
        let (server, layer) = Server::and_layer(|layer| layer.max_wait(LONG)).await;
        let running = tokio::spawn(send(server.pay("k", "wait")));
        eventually("it runs", || async { server.shop.has_begun("k") }).await;
        let waiting = tokio::spawn(send(server.pay("k", "201").header("prefer", "wait=60")));
        let other = tokio::spawn(send(server.pay("k", "201").header("prefer", "wait=60")));
        eventually("they wait", || async { server.shop.handed() == 3 }).await;
        // Those who wait end at once; on a busy machine that takes its time.
        assert_eq!(layer.drain(Duration::from_secs(3)).await.len(), 1);
        running.await.unwrap().is_problem(503, "stopping");
        for waiting in [waiting, other] {
            waiting.await.unwrap().is_problem(503, "stopping");
        }
        assert_eq!(server.shop.runs(), 1);
    }

    /// The attempt of the other process does not end: only the drain ends the wait.
    async fn a_server_that_stops_cuts_off_a_wait_for_the_attempt_of_another_process() {
        let (server, layer) = Server::and_layer(|layer| layer.max_wait(LONG).max_waiting(1)).await;
        send(server.pay("k", "201")).await.is_new(201);
        server.db.execute(RUNS_ELSEWHERE).await;
        let waits = |_| tokio::spawn(send(server.pay("k", "201").header("prefer", "wait=60")));
        let (mut waiting, mut refused): (Vec<_>, Vec<_>) = ((0..2).map(waits).collect(), Vec::new());
        eventually("one waits, and the other one finds no room", || {
            refused.extend(waiting.extract_if(.., |asked| asked.is_finished()));
            let is_one = refused.len() == 1;
            async move { is_one }
        })
        .await;
        refused.remove(0).await.unwrap().is_problem(409, "in-flight");
        layer.drain(Duration::from_millis(300)).await;
        waiting.remove(0).await.unwrap().is_problem(503, "stopping");
        assert_eq!(server.shop.runs(), 1);
    }
}
