//! Hooks of the application's that panic: a key whose work is done, or may be done, never becomes free.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rowlock::{Error, Fingerprint, Idempotency, RecordState};
use rowlock_http::{Finality, IdempotencyLayer, ServerError};

use crate::server::{Server, over_a_socket, send};

const ALL: [ServerError; 3] = [
    ServerError::Transient,
    ServerError::Unknown,
    ServerError::Keep,
];

fn redacts(layer: IdempotencyLayer) -> IdempotencyLayer {
    layer.redact(|_, _| panic!("as was asked"))
}

fn seals(layer: IdempotencyLayer) -> IdempotencyLayer {
    layer.seal(
        |_, _| -> Result<Vec<u8>, Error> { panic!("as was asked") },
        |_, sealed| Ok::<_, Error>(sealed.to_vec()),
    )
}

/// Two retries get this problem, and the handler has run once.
async fn runs_once(server: &Server, problem: (u16, &str), context: &str) {
    for _ in 0..2 {
        let retry = send(server.pay("k", "201")).await;
        assert!(retry.text().contains(problem.1), "{context}: {retry:?}");
        retry.is_problem(problem.0, problem.1);
    }
    let happened = (server.shop.runs(), server.effects().await);
    assert_eq!(happened, (1, 1), "{context}");
}

/// What is not known to be done is unknown, and not free: the hook would have told them apart.
fn after_a_panic(means: ServerError, status: u16) -> (u16, &'static str) {
    match status {
        401 | 429 => (409, "unknown"),
        500.. if means != ServerError::Keep => (409, "unknown"),
        _ => (410, "response-not-kept"),
    }
}

over_a_socket! {
    async fn a_finality_hook_that_panics_frees_no_key() {
        for means in ALL {
            for at_the_body in [false, true] {
                for status in [201, 402, 401, 429, 500] {
                    let server = Server::new(|layer| {
                        layer.server_error(means).finality(move |head, body| {
                            assert!(at_the_body && body.is_none(), "as was asked");
                            match Finality::of(head.status) {
                                Finality::Retry if means == ServerError::Keep && status == 500 => Finality::Keep,
                                finality => finality,
                            }
                        })
                    });
                    let server = server.await;
                    send(server.pay("k", &status.to_string())).await.is_new(status);
                    let context = format!("{means:?}, {at_the_body}, {status}");
                    runs_once(&server, after_a_panic(means, status), &context).await;
                }
            }
        }
    }

    async fn what_panics_while_it_makes_what_is_stored_frees_no_key() {
        for set in [redacts, seals] {
            for means in ALL {
                let server = Server::new(|layer| set(layer.server_error(means))).await;
                send(server.pay("k", "201")).await.is_new(201);
                runs_once(&server, (410, "response-not-kept"), &format!("{means:?}")).await;
            }
            for act in ["500", "panic"] {
                let server = Server::new(|layer| set(layer.server_error(ServerError::Keep))).await;
                assert_eq!(send(server.pay("k", act)).await.status, 500);
                runs_once(&server, (410, "response-not-kept"), act).await;
            }
        }
    }

    async fn what_panics_in_the_handlers_transaction_rolls_it_back() {
        for set in [redacts, seals] {
            for act in ["commit", "in-tx 0 201"] {
                let server = Server::new(set).await;
                let failed = send(server.pay("k", act)).await;
                assert!(failed.status == 507 || failed.status == 503, "{act}: {failed:?}");
                let noted = server.shop.noted();
                assert!(noted[0].contains("panicked"), "{noted:?}");
                assert_eq!(server.record("k").await.unwrap().state, RecordState::Free);
                assert_eq!(server.effects().await, 0, "{act}");
            }
        }
    }

    async fn a_response_whose_seal_panics_when_it_is_opened_is_damaged() {
        let server = Server::new(|layer| {
            layer.seal(
                |_, bytes| Ok::<_, Error>(bytes.to_vec()),
                |_, _| -> Result<Vec<u8>, Error> { panic!("as was asked") },
            )
        });
        let server = server.await;
        send(server.pay("k", "201")).await.is_new(201);
        runs_once(&server, (500, "damaged"), "open").await;
    }

    async fn a_reconcile_hook_that_panics_decides_nothing() {
        let records = |records: Idempotency| {
            records.reconcile(|_| async { panic!("as was asked") })
        };
        let server = Server::with(records, |layer| layer.server_error(ServerError::Unknown)).await;
        send(server.pay("k", "500")).await.is_new(500);
        runs_once(&server, (409, "unknown"), "reconcile").await;
        assert_eq!(server.record("k").await.unwrap().state, RecordState::Unknown);
    }

    /// Nothing was begun: the next request counts as the first one.
    async fn a_hook_that_panics_before_the_handler_leaves_nothing() {
        type Set = fn(IdempotencyLayer, Arc<AtomicBool>) -> IdempotencyLayer;
        fn panics_once(panicked: &AtomicBool) {
            assert!(panicked.swap(true, Ordering::SeqCst), "as was asked");
        }
        let sets: [(&str, Set); 6] = [
            ("key_format", |layer, once| layer.key_format(move |_| {
                panics_once(&once);
                true
            })),
            ("uri", |layer, once| layer.uri(move |head| {
                panics_once(&once);
                head.uri.clone()
            })),
            ("key_from", |layer, once| layer.key_from(move |_| {
                panics_once(&once);
                async { Ok::<_, String>(Some("k".to_owned())) }
            })),
            ("key_from, later", |layer, once| layer.key_from(move |_| {
                let once = Arc::clone(&once);
                async move {
                    panics_once(&once);
                    Ok::<_, String>(Some("k".to_owned()))
                }
            })),
            ("key_format of key_from", |layer, once| {
                let layer = layer.key_from(|_| async { Ok::<_, String>(Some("k".to_owned())) });
                layer.key_format(move |_| {
                    panics_once(&once);
                    true
                })
            }),
            ("fingerprint", |layer, once| layer.fingerprint(move |_| {
                panics_once(&once);
                async { Ok::<_, String>(Fingerprint::of("request")) }
            })),
        ];
        for (name, set) in sets {
            let server = Server::new(|layer| set(layer, Arc::default())).await;
            let refused = send(server.pay("k", "201")).await;
            assert!(refused.text().contains("handler-panicked"), "{name}: {refused:?}");
            refused.is_problem(500, "handler-panicked");
            assert!(server.record("k").await.is_none(), "{name}");
            assert_eq!(server.shop.runs(), 0, "{name}");
            let first = send(server.pay("k", "201")).await;
            first.is_new(201);
            send(server.pay("k", "201")).await.is_replay_of(&first);
        }
    }

    async fn a_principal_that_panics_refuses_the_request() {
        let server = Server::plain().await;
        let request = || server.request("POST", "/pay").header("idempotency-key", "\"k\"");
        // The shop's principal panics at this name.
        send(request().header("x-user", "panic")).await.is_problem(500, "handler-panicked");
        assert_eq!(server.shop.runs(), 0);
        send(request().header("x-user", "ann")).await.is_new(201);
    }

    /// Each function panics now and then, on many keys at the same time, and each request is sent until it has an
    /// answer.
    async fn whichever_function_panics_no_work_is_done_twice() {
        let server = Server::new(|layer| {
            let moments = Arc::new(AtomicU64::new(1));
            let panics = move || {
                let moment = moments.fetch_add(1, Ordering::SeqCst).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                assert!(moment >> 61 != 0, "as was asked");
            };
            let [format, finality, redact, seal, open] = [(); 5].map(|()| panics.clone());
            layer
                .key_format(move |_| {
                    format();
                    true
                })
                .finality(move |head, _| {
                    finality();
                    Finality::of(head.status)
                })
                .redact(move |_, _| redact())
                .seal(
                    move |_, bytes| {
                        seal();
                        Ok::<_, Error>(bytes.to_vec())
                    },
                    move |_, bytes| {
                        open();
                        Ok::<_, Error>(bytes.to_vec())
                    },
                )
        });
        let server = &server.await;
        let clients = (0..8).map(|client| async move {
            for number in 0..25 {
                for _ in 0..5 {
                    let answer = send(server.pay(&format!("{client}-{number}"), "201")).await;
                    assert!([201, 410, 500].contains(&answer.status), "{answer:?}");
                }
            }
        });
        futures_util::future::join_all(clients).await;
        let twice = "SELECT COUNT(*) FROM (SELECT k FROM effect GROUP BY k HAVING COUNT(*) > 1)";
        assert_eq!(server.db.number(twice).await, 0);
        // Now and then all five are refused before the handler.
        assert!((190..=200).contains(&server.effects().await));
    }
}
