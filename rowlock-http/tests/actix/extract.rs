//! The attempt as an argument of actix-web's handlers, and what is theirs alone.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::ready;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use actix_web::HttpResponse;
use actix_web::body::{BodySize, MessageBody};
use actix_web::dev::{Service as _, ServiceRequest, ServiceResponse};
use actix_web::error::ErrorConflict;
use actix_web::http::header::HeaderName;
use actix_web::middleware::{DefaultHeaders, Next, from_fn};
use actix_web::web::{self, Bytes};
use rowlock::{Idempotency, RecordState};
use rowlock_http::actix::{IdempotencyMiddleware, into_response};
use rowlock_http::{IdempotencyLayer, Idempotent};
use rowlock_test::eventually;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tracing::Span;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::framework::serve_app;
use crate::server::{OPERATION, Place, Server, over_a_socket, send};

type Routes = fn(IdempotencyLayer, Idempotency, &mut web::ServiceConfig);

async fn server(routes: Routes) -> Server {
    let set = |layer: IdempotencyLayer| layer.required(false);
    let place = Place::new(|records| records, set, OPERATION).await;
    let (layer, records) = (place.layer.clone(), place.rowlock.idempotency());
    let routes = move |_: &_, config: &mut _| routes(layer.clone(), records.clone(), config);
    let serving = serve_app(&place.shop, routes).await;
    place.at(serving)
}

fn attempts(layer: IdempotencyLayer, _: Idempotency, config: &mut web::ServiceConfig) {
    let required = async |_: Idempotent| HttpResponse::Ok();
    let optional = async |once: Option<Idempotent>| once.map_or("none", |_| "one");
    config
        .route("/outside", web::post().to(optional))
        .route("/wrong", web::post().to(required))
        .service(
            web::scope("/in")
                .wrap(IdempotencyMiddleware::new(layer))
                .route("/optional", web::post().to(optional))
                .route("/required", web::post().to(required)),
        );
}

/// The user is not in a header.
fn principals(_: IdempotencyLayer, records: Idempotency, config: &mut web::ServiceConfig) {
    let layer = IdempotencyLayer::new(records, |parts| parts.extensions.get::<String>().cloned());
    let middleware = IdempotencyMiddleware::new(layer).extensions(|request, extensions| {
        if let Some(user) = request.query_string().strip_prefix("user=") {
            extensions.insert(user.to_owned());
        }
    });
    let pay = async |once: Idempotent| HttpResponse::Ok().body(once.record().to_string());
    config.service(
        web::resource("/pay")
            .wrap(middleware)
            .route(web::post().to(pay)),
    );
}

fn spans(layer: IdempotencyLayer, _: Idempotency, config: &mut web::ServiceConfig) {
    let span = async || {
        tokio::task::yield_now().await;
        Span::current()
            .metadata()
            .map_or("none", |span| span.name())
    };
    config.service(
        web::resource("/span")
            .wrap(IdempotencyMiddleware::new(layer))
            .route(web::post().to(span)),
    );
}

fn errors(layer: IdempotencyLayer, _: Idempotency, config: &mut web::ServiceConfig) {
    let fails = async || Err::<HttpResponse, _>(actix_web::error::ErrorConflict("sold out"));
    let kept = async |_: Idempotent| {
        let response = http::Response::builder()
            .status(201)
            .header("x-kept", "yes");
        into_response(response.body("kept".into()).unwrap())
    };
    config.service(
        web::scope("")
            .wrap(IdempotencyMiddleware::new(layer))
            .route("/fails", web::post().to(fails))
            .route("/kept", web::post().to(kept)),
    );
}

fn panics(layer: IdempotencyLayer, _: Idempotency, config: &mut web::ServiceConfig) {
    let middleware = IdempotencyMiddleware::new(layer).extensions(|_, _| panic!("as was asked"));
    let pay = web::resource("/pay").wrap(middleware);
    config.service(pay.route(web::post().to(async || "paid")));
}

fn nested(layer: IdempotencyLayer, _: Idempotency, config: &mut web::ServiceConfig) {
    let inner = web::resource("/pay").wrap(IdempotencyMiddleware::new(layer.clone()));
    let inner = inner.route(web::post().to(async || "paid"));
    let outer = web::scope("/shop").wrap(IdempotencyMiddleware::new(layer));
    config.service(outer.service(inner));
}

/// A middleware outside says whose request it answers.
fn failures(layer: IdempotencyLayer, _: Idempotency, config: &mut web::ServiceConfig) {
    let layer = layer.max_run(Duration::from_millis(300));
    let outside = DefaultHeaders::new().add(("x-outside", "yes"));
    let refuses = web::resource("/refuses")
        .route(web::post().to(async || "paid"))
        .wrap_fn(|_, _| ready(Err::<ServiceResponse, _>(ErrorConflict("no"))));
    let all = web::scope("")
        .service(refuses)
        .route(
            "/panics",
            web::post().to(async || -> &str { panic!("as was asked") }),
        )
        .route("/hangs", web::post().to(std::future::pending::<&str>))
        .wrap(IdempotencyMiddleware::new(layer))
        .wrap(outside)
        .wrap_fn(|request, service| {
            let answer = service.call(request);
            async move {
                let mut answer = answer.await?;
                let request = answer.request();
                let origin = request.headers().get("origin").unwrap().to_str().unwrap();
                let said = format!("{} {} {origin}", request.method(), request.uri());
                let headers = answer.headers_mut();
                headers.insert(HeaderName::from_static("x-asked"), said.parse().unwrap());
                Ok(answer)
            }
        });
    config.service(all);
}

/// The service inside has records of its own.
fn two_records(layer: IdempotencyLayer, _: Idempotency, config: &mut web::ServiceConfig) {
    let read = async |_: web::Json<serde_json::Value>, once: Idempotent| once.record().to_string();
    let inner = IdempotencyMiddleware::new(layer.clone().service("payments"));
    let inner = web::resource("/json")
        .wrap(inner)
        .route(web::post().to(read));
    let outer = IdempotencyMiddleware::new(layer.service("gateway"));
    config.service(web::scope("").wrap(outer).service(inner));
}

fn json(layer: IdempotencyLayer, _: Idempotency, config: &mut web::ServiceConfig) {
    type Json = web::Json<serde_json::Value>;
    type Form = web::Form<HashMap<String, String>>;
    let own = async || Err::<&str, _>(actix_web::error::ErrorBadRequest("no"));
    config.service(
        web::scope("")
            .wrap(IdempotencyMiddleware::new(layer))
            .app_data(web::JsonConfig::default().limit(10))
            .route("/json", web::post().to(async |_: Json| "read"))
            .route("/form", web::post().to(async |_: Form| "read"))
            .route("/own", web::post().to(own))
            .service(
                web::resource("/inside")
                    .wrap(from_fn(extracts))
                    .to(async || "read"),
            ),
    );
}

async fn extracts(
    mut request: ServiceRequest,
    next: Next<impl MessageBody>,
) -> Result<ServiceResponse<impl MessageBody>, actix_web::Error> {
    request.extract::<web::Json<serde_json::Value>>().await?;
    next.call(request).await
}

/// A body that says something, and then nothing.
struct Silent {
    said: bool,
    /// How many of them there are.
    count: Arc<AtomicU32>,
}

impl Silent {
    fn new(count: &Arc<AtomicU32>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        let count = Arc::clone(count);
        Self { said: false, count }
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::SeqCst);
    }
}

impl MessageBody for Silent {
    type Error = Infallible;

    fn size(&self) -> BodySize {
        BodySize::Stream
    }

    fn poll_next(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Infallible>>> {
        if self.said {
            return Poll::Pending;
        }
        self.said = true;
        Poll::Ready(Some(Ok(Bytes::from_static(b"hello"))))
    }
}

over_a_socket! {
    async fn a_body_that_nobody_reads_on_is_dropped() {
        // The layer looks for the key in the body. So a request that has none passes through the layer's tasks, too.
        let set = |layer: IdempotencyLayer| layer.required(false).key_in_json("$.id");
        let place = Place::new(|records| records, set, OPERATION).await;
        let layer = place.layer.clone();
        let bodies = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&bodies);
        let routes = move |_: &_, config: &mut web::ServiceConfig| {
            let counted = Arc::clone(&counted);
            let silent = move || ready(HttpResponse::Ok().body(Silent::new(&counted)));
            let middleware = IdempotencyMiddleware::new(layer.clone());
            config.service(web::resource("/pay").wrap(middleware).route(web::post().to(silent)));
        };
        let serving = serve_app(&place.shop, routes).await;
        let server = place.at(serving);
        let mut client = TcpStream::connect(server.address).await.unwrap();
        let request = "POST /pay HTTP/1.1\r\nhost: test\r\nx-user: ann\r\ncontent-length: 2\r\n\r\n{}";
        client.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"hello\r\n") {
            answer.push(client.read_u8().await.unwrap());
        }
        assert_eq!(bodies.load(Ordering::SeqCst), 1);
        // actix-web waits for more after a mere end of the connection.
        client.set_zero_linger().unwrap();
        drop(client);
        eventually("the body is dropped", || async { bodies.load(Ordering::SeqCst) == 0 }).await;
    }

    /// The handler may be on another thread than the layer.
    async fn what_a_handler_logs_has_the_span_of_its_request() {
        tracing_subscriber::registry().init();
        let server = server(spans).await;
        assert_eq!(server.ask("/span", "a").await.is_new(200).text(), "idempotent request");
        assert_eq!(server.ask("/span", "").await.is_new(200).text(), "none");
    }

    async fn a_handler_outside_of_the_layer_has_no_attempt() {
        let server = server(attempts).await;
        assert_eq!(server.ask("/in/optional", "a").await.is_new(200).text(), "one");
        assert_eq!(server.ask("/in/optional", "").await.is_new(200).text(), "none");
        assert_eq!(server.ask("/outside", "b").await.is_new(200).text(), "none");
        server.ask("/in/required", "c").await.is_new(200);
        for (path, key) in [("/in/required", ""), ("/wrong", "d")] {
            server.ask(path, key).await.is_new(500);
        }
    }

    async fn the_principal_may_be_what_actix_web_knows() {
        let server = server(principals).await;
        let pay = async |user: &str| {
            let request = server.request("POST", &format!("/pay{user}"));
            send(request.header("idempotency-key", "\"k\"")).await
        };
        let (ann, bob) = (pay("?user=ann").await, pay("?user=bob").await);
        assert!(ann.is_new(200).text().contains("http:ann"), "{ann:?}");
        assert!(bob.is_new(200).text().contains("http:bob"), "{bob:?}");
        pay("").await.is_problem(401, "no-principal");
    }

    async fn an_error_counts_by_its_response_and_a_kept_response_can_be_returned() {
        let server = server(errors).await;
        let ask = async |path: &str| {
            let request = server.request("POST", path).header("x-user", "ann");
            send(request.header("idempotency-key", format!("\"{path}\""))).await
        };
        let first = ask("/fails").await;
        assert_eq!(first.is_new(409).text(), "sold out");
        ask("/fails").await.is_replay_of(&first);
        let first = ask("/kept").await;
        assert_eq!((first.is_new(201).text(), first.header("x-kept")), ("kept", Some("yes")));
        ask("/kept").await.is_replay_of(&first);
    }

    /// The handlers are on the server's threads.
    async fn a_handler_whose_client_has_hung_up_is_waited_for_before_the_server_stops() {
        let kept = OnceLock::new();
        let keep = |layer: IdempotencyLayer| kept.get_or_init(|| layer).clone();
        let mut server = Server::new(keep).await;
        let layer = kept.into_inner().unwrap();
        let hangs_up = tokio::spawn(send(server.pay("k", "wait")));
        eventually("the effect", || async { server.effects().await == 1 }).await;
        hangs_up.abort();
        let draining = tokio::spawn(async move { layer.drain(Duration::from_mins(1)).await });
        tokio::task::yield_now().await;
        assert!(!draining.is_finished(), "the handler runs");
        server.shop.gate.add_permits(1);
        assert_eq!(draining.await.unwrap(), []);
        server.stop().await;
        assert_eq!(server.record("k").await.unwrap().state, RecordState::Done);
    }

    async fn a_body_that_is_larger_than_actix_web_allows_is_the_layers_to_judge() {
        let server = server(errors).await;
        let request = server.request("POST", "/kept").header("x-user", "ann");
        let request = request.header("idempotency-key", "\"k\"").body(vec![b'x'; 3 << 20]);
        send(request).await.is_problem(413, "body-too-large");
    }

    async fn a_wrong_content_type_is_corrected_under_the_same_key() {
        let server = server(json).await;
        let ask = async |path: &str, content_type: &'static str, body: &'static str| {
            let request = server.request("POST", path).header("x-user", "ann");
            let request = request.header("idempotency-key", format!("\"{path}\""));
            send(request.header("content-type", content_type).body(body)).await
        };
        let (json, form) = ("application/json", "application/x-www-form-urlencoded");
        for (path, wrong, right) in [("/json", 400, json), ("/inside", 400, json), ("/form", 415, form)] {
            ask(path, "text/plain", "{}").await.is_new(wrong);
            let first = ask(path, right, "{}").await;
            first.is_new(200);
            ask(path, right, "{}").await.is_replay_of(&first);
        }
        // What is wrong with the content stays wrong, and so does a refusal of the handler's own.
        for (path, body) in [("/json?bad", "{"), ("/own", "{}")] {
            let first = ask(path, "application/json", body).await;
            first.is_new(400);
            ask(path, "application/json", body).await.is_replay_of(&first);
        }
    }

    async fn a_body_over_the_limit_of_an_extractor_frees_the_key() {
        let server = server(json).await;
        let ask = async |body: &'static str| {
            let request = server.request("POST", "/json").header("x-user", "ann");
            let request = request.header("idempotency-key", "\"k\"").header("content-type", "application/json");
            send(request.body(body)).await
        };
        ask("[1,2,3,4,5,6]").await.is_new(413);
        assert_eq!(server.record("k").await.unwrap().state, RecordState::Free);
        let first = ask("[1,2]").await;
        first.is_new(200);
        ask("[1,2]").await.is_replay_of(&first);
    }

    async fn every_answer_passes_the_middlewares_outside() {
        let server = server(failures).await;
        for (path, status) in [("/panics", 500), ("/hangs", 503), ("/refuses", 409)] {
            let request = server.request("POST", path).header("x-user", "ann");
            let request = request.header("idempotency-key", format!("\"{path}\""));
            let answer = send(request.header("origin", "https://shop.example")).await;
            assert_eq!((answer.status, answer.header("x-outside")), (status, Some("yes")), "{answer:?}");
            let asked = format!("POST {path} https://shop.example");
            assert_eq!(answer.header("x-asked"), Some(&*asked));
        }
    }

    async fn a_layer_inside_of_another_one_leaves_its_attempt_alone() {
        let server = server(two_records).await;
        let ask = async |content_type: &'static str| {
            let request = server.request("POST", "/json").header("x-user", "ann").body("{}");
            let request = request.header("idempotency-key", "\"k\"");
            send(request.header("content-type", content_type)).await
        };
        // Neither of them keeps it.
        ask("text/plain").await.is_new(400);
        let first = ask("application/json").await;
        assert!(first.is_new(200).text().contains("@payments"), "{first:?}");
        ask("application/json").await.is_replay_of(&first);
    }

    async fn a_layer_inside_of_the_same_layer_is_told_from_a_request_that_runs() {
        let server = server(nested).await;
        for _ in 0..2 {
            server.ask("/shop/pay", "k").await.is_problem(500, "misconfigured");
        }
        assert_eq!(server.record("k").await.unwrap().state, RecordState::Free);
    }

    async fn a_panic_of_what_fills_the_extensions_refuses_the_request() {
        let server = server(panics).await;
        server.ask("/pay", "k").await.is_problem(500, "handler-panicked");
        assert!(server.record("k").await.is_none());
    }
}
