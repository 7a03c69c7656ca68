//! What is stored of a response: without what the application takes out of it, and sealed.

use rowlock::Error;
use rowlock_http::IdempotencyLayer;

use crate::server::{Server, over_a_socket, send};

/// A cipher for tests: each byte is changed, and the key of the record stands before them.
fn seal(layer: IdempotencyLayer) -> IdempotencyLayer {
    layer.seal(
        |record, bytes| {
            let turned = bytes.iter().map(|byte| byte ^ 0x55);
            Ok::<_, Error>(record.key().iter().copied().chain(turned).collect())
        },
        |record, sealed| match sealed.strip_prefix(record.key()) {
            Some(turned) => Ok(turned.iter().map(|byte| byte ^ 0x55).collect()),
            None => Err("it is of another record"),
        },
    )
}

/// The stored bytes, as text.
async fn stored(server: &Server, key: &str) -> String {
    String::from_utf8_lossy(server.outcome(key).await.bytes()).into_owned()
}

over_a_socket! {
    async fn what_is_taken_out_is_not_stored_and_the_first_client_gets_it() {
        let server = Server::new(|layer| {
            layer.redact(|head, body| {
                head.headers.remove("location");
                *body = String::from_utf8_lossy(body).replace("100", "***").into_bytes();
            })
        });
        let server = server.await;
        for act in ["201", "commit"] {
            let first = send(server.pay(act, act)).await;
            assert!(first.is_new(201).text().ends_with("100"));
            let replay = send(server.pay(act, act)).await;
            assert!(replay.is_replay() && replay.status == 201, "{replay:?}");
            assert_eq!(replay.text(), first.text().replace("100", "***"));
            assert_eq!(replay.header("location"), None);
            assert!(!stored(&server, act).await.contains("100"));
        }
    }

    async fn what_is_sealed_cannot_be_read_in_the_database_and_is_replayed() {
        let server = Server::new(seal).await;
        for act in ["201", "commit"] {
            let first = send(server.pay(act, act)).await;
            first.is_new(201);
            let stored = stored(&server, act).await;
            assert!(stored.starts_with(act) && !stored.contains("POST /pay"), "{stored}");
            send(server.pay(act, act)).await.is_replay_of(&first);
        }
        // What was moved to another record is damaged there.
        server
            .db
            .execute("UPDATE rowlock_idempotency SET outcome = (SELECT outcome FROM rowlock_idempotency WHERE CAST(idempotency_key AS TEXT) = 'commit')")
            .await;
        send(server.pay("201", "201")).await.is_problem(500, "damaged");
        assert_eq!(server.shop.runs(), 2);
    }

    /// Who may write to the database could keep any response there.
    async fn what_is_not_sealed_is_not_replayed_where_only_sealed_responses_are() {
        let acts = ["201", "complete", "large 2000"];
        for only in [false, true] {
            let server = Server::new(|layer| seal(layer).sealed_only(only).max_response(1_000)).await;
            for act in acts {
                send(server.pay(act, act)).await;
            }
            server.db.execute("UPDATE rowlock_idempotency SET outcome = CAST('HTTP/1.1 201 Created' || char(13, 10, 13, 10) AS BLOB), \
                               content_type = 'message/http' WHERE content_type LIKE '%sealed'").await;
            for (act, replay) in [(acts[0], 201), (acts[1], 200)] {
                let again = send(server.pay(act, act)).await;
                if only {
                    again.is_problem(410, "response-not-kept");
                } else {
                    assert_eq!((again.status, again.is_replay()), (replay, true), "{again:?}");
                }
            }
            // This says nothing that could be forged.
            send(server.pay(acts[2], acts[2])).await.is_problem(410, "response-not-kept");
            assert_eq!(server.shop.runs(), 3);
        }
        let server = Server::new(|layer| layer.sealed_only(true)).await;
        send(server.pay("k", "201")).await.is_problem(500, "misconfigured");
    }

    async fn what_cannot_be_sealed_is_not_kept() {
        let server = Server::new(|layer| {
            layer.seal(|_, _| Err("the key store is away"), |_, sealed| Ok::<_, Error>(sealed.to_vec()))
        });
        let server = server.await;
        send(server.pay("k", "201")).await.is_new(201);
        send(server.pay("k", "201")).await.is_problem(410, "response-not-kept");
        send(server.pay("tx", "commit")).await.is_new(507);
        let noted = server.shop.noted();
        assert!(noted[0].contains("the key store is away"), "{noted:?}");
        assert_eq!(server.effects().await, 1);
    }

    async fn what_was_sealed_needs_the_seal() {
        let server = Server::plain().await;
        send(server.pay("k", "201")).await.is_new(201);
        // As if a layer with a seal had written it.
        server.db.execute("UPDATE rowlock_idempotency SET content_type = 'application/vnd.rowlock.sealed'").await;
        send(server.pay("k", "201")).await.is_problem(500, "misconfigured");
        assert_eq!(server.shop.runs(), 1);
    }
}
