//! The handler ends its attempt by itself.

use rowlock::RecordState;
use rowlock_http::ServerError;

use crate::server::{Server, over_a_socket, send};

over_a_socket! {
    async fn the_effect_and_the_response_are_one_commit() {
        let server = Server::plain().await;
        let first = send(server.pay("k", "commit")).await;
        assert_eq!(first.is_new(201).text(), "run 1: POST /pay 100");
        assert!(first.headers.contains_key("set-cookie"));
        let second = send(server.pay("k", "commit")).await;
        second.is_replay_of(&first);
        assert_eq!(second.header("content-type"), first.header("content-type"));
        assert!(!second.headers.contains_key("set-cookie"));
        let kept = server.outcome("k").await;
        assert!(!String::from_utf8_lossy(kept.bytes()).contains("secret"));
        assert_eq!((server.shop.runs(), server.effects().await), (1, 1));
    }

    async fn a_transaction_of_the_layer_is_one_commit_and_begins_again_after_a_conflict() {
        for (conflicts, status) in [(0, 201), (2, 201), (1, 402)] {
            let server = Server::plain().await;
            let act = format!("in-tx {conflicts} {status}");
            let first = send(server.pay("k", &act)).await;
            let said = format!("run 1: POST /pay 100, try {}", conflicts + 1);
            assert_eq!(first.is_new(status).text(), said);
            send(server.pay("k", &act)).await.is_replay_of(&first);
            assert_eq!((server.shop.runs(), server.effects().await), (1, 1));
        }
    }

    async fn what_a_transaction_of_the_layer_has_kept_counts_whatever_is_answered() {
        let server = Server::plain().await;
        send(server.pay("k", "in-tx 0 201 500")).await.is_new(500);
        let retry = send(server.pay("k", "201")).await;
        assert_eq!((retry.status, retry.text(), retry.is_replay()), (201, "run 1: POST /pay 100, try 1", true));
        assert_eq!((server.shop.runs(), server.effects().await), (1, 1));
    }

    /// The second one fails, because the attempt is over. The first one counts.
    async fn another_transaction_after_the_commit_changes_nothing() {
        let server = Server::plain().await;
        send(server.pay("k", "in-tx 0 201 twice")).await.is_new(202);
        let noted = server.shop.noted();
        assert!(noted.len() == 1 && noted[0].contains("open or committed"), "{noted:?}");
        let retry = send(server.pay("k", "201")).await;
        assert_eq!((retry.status, retry.text(), retry.is_replay()), (201, "run 1: POST /pay 100, try 1", true));
        assert_eq!((server.shop.runs(), server.effects().await), (1, 1));
    }

    async fn a_transaction_of_the_layer_that_fails_leaves_nothing() {
        let server = Server::with(
            |idempotency| idempotency.retry(rowlock::Retry::new().attempts(3)),
            |layer| layer,
        );
        let server = server.await;
        send(server.pay("k", "in-tx 3 201")).await.is_new(503);
        let noted = server.shop.noted();
        assert!(noted.len() == 1 && noted[0].contains("a row was changed"), "{noted:?}");
        assert_eq!((server.record("k").await.unwrap().state, server.effects().await), (RecordState::Free, 0));
        let second = send(server.pay("k", "in-tx 2 201")).await;
        second.is_new(201);
        send(server.pay("k", "in-tx 0 201")).await.is_replay_of(&second);
        assert_eq!(server.effects().await, 1);
    }

    async fn after_a_commit_that_failed_the_response_of_the_handler_decides() {
        let server = Server::plain().await;
        server.db.execute("CREATE TABLE parent (id INTEGER PRIMARY KEY)").await;
        server.db.execute("CREATE TABLE child (id INTEGER REFERENCES parent DEFERRABLE INITIALLY DEFERRED)").await;
        let first = send(server.pay("k", "in-tx 0 201 402")).await;
        assert_eq!((first.is_new(402).status, server.effects().await), (402, 0));
        send(server.pay("k", "201")).await.is_replay_of(&first);
    }

    async fn what_was_committed_counts_whatever_is_answered() {
        for (act, status) in [("commit 500", 500), ("commit 404", 404), ("commit panic", 500)] {
            let server = Server::plain().await;
            assert_eq!(send(server.pay("k", act)).await.status, status);
            let retry = send(server.pay("k", "201")).await;
            assert_eq!((retry.status, retry.is_replay()), (201, true), "{act}: {retry:?}");
            assert_eq!((server.shop.runs(), server.effects().await), (1, 1));
        }
    }

    async fn a_rollback_frees_the_key_whatever_is_answered() {
        for act in ["rollback", "rollback 200", "rollback 404", "rollback 500", "rollback panic"] {
            let server = Server::plain().await;
            let first = send(server.pay("k", act)).await;
            assert!(!first.is_replay());
            assert_eq!(server.effects().await, 0);
            let second = send(server.pay("k", "commit")).await;
            assert_eq!(second.is_new(201).text(), "run 2: POST /pay 100", "{act}");
            send(server.pay("k", "commit")).await.is_replay_of(&second);
            assert_eq!((server.shop.runs(), server.effects().await), (2, 1));
        }
    }

    async fn what_happened_beside_a_rolled_back_end_is_unknown_where_server_errors_are() {
        for act in ["rollback", "rollback 500", "rollback panic"] {
            let server = Server::new(|layer| layer.server_error(ServerError::Unknown)).await;
            send(server.pay("k", act)).await;
            send(server.pay("k", "commit")).await.is_problem(409, "unknown");
            assert_eq!((server.shop.runs(), server.effects().await), (1, 0), "{act}");
        }
    }

    async fn a_response_that_cannot_be_kept_is_an_error_before_the_commit() {
        let server = Server::new(|layer| layer.max_response(1_000)).await;
        send(server.pay("k", "large-in-tx")).await.is_new(507);
        let noted = server.shop.noted();
        assert!(noted[0].contains("2000 bytes, and at most 1000"), "{noted:?}");
        assert_eq!(server.effects().await, 0);
        send(server.pay("k", "commit")).await.is_new(201);
    }

    async fn a_response_with_trailers_is_an_error_before_the_commit() {
        let server = Server::plain().await;
        send(server.pay("k", "trailers-in-tx")).await.is_new(507);
        let noted = server.shop.noted();
        assert!(noted[0].contains("trailers"), "{noted:?}");
        assert_eq!(server.effects().await, 0);
        send(server.pay("k", "commit")).await.is_new(201);
    }

    async fn what_the_handler_records_by_hand_is_replayed() {
        let server = Server::plain().await;
        let first = send(server.pay("k", "complete")).await;
        assert_eq!(first.is_new(201).text(), "run 1: POST /pay 100");
        let retry = send(server.pay("k", "201")).await;
        assert_eq!((retry.status, retry.text(), retry.is_replay()), (200, "\"by hand\"", true));
        assert_eq!(retry.header("content-type"), Some("application/json"));
        assert_eq!(server.shop.runs(), 1);
    }

    async fn what_the_guard_has_committed_is_replayed() {
        let server = Server::plain().await;
        let first = send(server.pay("k", "guard-commit")).await;
        assert_eq!(first.is_new(201).text(), "run 1: POST /pay 100");
        let retry = send(server.pay("k", "201")).await;
        assert_eq!((retry.status, retry.text(), retry.is_replay()), (200, "\"by hand\"", true));
        assert_eq!((server.shop.runs(), server.effects().await), (1, 1));
    }

    async fn a_rollback_of_what_the_guard_has_recorded_frees_the_key() {
        let server = Server::plain().await;
        send(server.pay("k", "guard-rollback")).await.is_new(201);
        assert_eq!((server.record("k").await.unwrap().state, server.effects().await), (RecordState::Free, 0));
    }

    async fn steps_are_done_once_over_all_attempts() {
        let server = Server::plain().await;
        for status in [500, 503, 200] {
            send(server.pay("k", &format!("steps {status}"))).await.is_new(status);
        }
        let noted = server.shop.noted();
        let (charged, attempts): (Vec<&String>, Vec<&String>) =
            noted.iter().partition(|note| note.starts_with("charged"));
        assert!(charged.len() == 3 && charged.iter().all(|note| *note == charged[0]), "{noted:?}");
        assert!(charged[0].starts_with("charged in run 1 as "), "{noted:?}");
        let attempts: Vec<i64> = attempts.iter().map(|note| note.parse().unwrap()).collect();
        assert!(attempts.is_sorted_by(|one, next| one < next), "{attempts:?}");
        assert_eq!(server.record("k").await.unwrap().state, RecordState::Done);
    }
}
