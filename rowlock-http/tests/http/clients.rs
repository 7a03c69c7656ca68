//! The client's side: what is sent again, when, and under which key.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{Extensions, HeaderMap, HeaderName, StatusCode};
use axum::response::IntoResponse;
use axum::routing::any;
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware, Middleware, Next};
use rowlock_http::client::IdempotentRetries;
use rowlock_test::eventually;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::server::{Server, over_a_socket, send};

/// A status, and headers.
type Status = (u16, HeaderMap);

/// A server that answers as it is told, in this order, and then with 200.
#[derive(Clone, Default)]
struct Told {
    answers: Arc<Mutex<VecDeque<Status>>>,
    keys: Arc<Mutex<Vec<Option<String>>>>,
}

impl Told {
    fn new(answers: &[(u16, Option<&str>)]) -> Self {
        let answers = answers.iter();
        Self::with(
            answers.map(|(status, after)| (*status, after.map(|after| ("retry-after", after)))),
        )
    }

    fn with<'a, H>(answers: impl IntoIterator<Item = (u16, H)>) -> Self
    where
        H: IntoIterator<Item = (&'static str, &'a str)>,
    {
        let told = Self::default();
        for (status, headers) in answers {
            let headers = headers.into_iter();
            let headers = headers
                .map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()));
            told.answers
                .lock()
                .unwrap()
                .push_back((status, headers.collect()));
        }
        told
    }

    async fn serve(&self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let app = Router::new()
            .route("/", any(answer))
            .with_state(self.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        url
    }

    fn keys(&self) -> Vec<Option<String>> {
        self.keys.lock().unwrap().clone()
    }
}

async fn answer(State(told): State<Told>, request: Request) -> impl IntoResponse {
    let key = request.headers().get("idempotency-key");
    let key = key.map(|key| key.to_str().unwrap().to_owned());
    told.keys.lock().unwrap().push(key);
    let next = told.answers.lock().unwrap().pop_front();
    let (status, headers) = next.unwrap_or((200, HeaderMap::new()));
    (StatusCode::from_u16(status).unwrap(), headers, "said")
}

fn client(retries: IdempotentRetries) -> ClientWithMiddleware {
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    ClientBuilder::new(client).with(retries).build()
}

/// Posts once, and returns the status and the keys that the server was sent.
async fn post(retries: IdempotentRetries, answers: &[(u16, Option<&str>)]) -> (u16, Vec<String>) {
    sends(retries, Told::new(answers)).await
}

async fn sends(retries: IdempotentRetries, told: Told) -> (u16, Vec<String>) {
    let url = told.serve().await;
    let response = client(retries).post(url).body("500").send().await.unwrap();
    let keys = told.keys().into_iter().map(Option::unwrap).collect();
    (response.status().as_u16(), keys)
}

/// Sends each request twice, as a middleware does that tries again.
struct Twice;

#[async_trait::async_trait]
impl Middleware for Twice {
    async fn handle(
        &self,
        request: reqwest::Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> reqwest_middleware::Result<reqwest::Response> {
        let copy = request.try_clone().unwrap();
        next.clone().run(copy, extensions).await?;
        next.run(request, extensions).await
    }
}

over_a_socket! {
    async fn a_request_keeps_its_key_until_it_has_its_response() {
        let answers = [(409, Some("0")), (425, None), (429, Some("0")), (503, None)];
        let (status, keys) = post(IdempotentRetries::new(), &answers).await;
        assert_eq!((status, keys.len()), (200, 5));
        assert!(keys.iter().all(|key| key == &keys[0]), "{keys:?}");
        assert!(keys[0].len() == 38 && keys[0].starts_with('"') && keys[0].ends_with('"'));
        let (_, others) = post(IdempotentRetries::new(), &[]).await;
        assert_ne!(others, keys[..1], "each request has a key of its own");
    }

    async fn what_is_final_is_not_sent_again() {
        let conflict = (409, None);
        for answer in [(422, None), (422, Some("0")), conflict, (400, None), (401, None), (410, None), (501, None)] {
            let (status, keys) = post(IdempotentRetries::new(), &[answer]).await;
            assert_eq!((status, keys.len()), (answer.0, 1));
        }
        let (status, keys) = post(IdempotentRetries::new().retry_conflicts(true), &[conflict]).await;
        assert_eq!((status, keys.len()), (200, 2));
        for passing in [408, 500, 502, 503, 504] {
            let (status, keys) = post(IdempotentRetries::new(), &[(passing, None)]).await;
            assert_eq!((status, keys.len()), (200, 2), "{passing}");
        }
    }

    async fn what_the_server_has_kept_is_not_sent_again() {
        let server = Server::new(|layer| layer.server_error(rowlock_http::ServerError::Keep)).await;
        let pay = async || {
            let request = client(IdempotentRetries::new()).post(format!("http://{}/pay", server.address));
            let request = request.header("x-user", "ann").header("idempotency-key", "\"k\"").body("100");
            request.header("x-act", "500").send().await.unwrap()
        };
        assert_eq!(pay().await.status(), 500);
        assert_eq!((server.shop.runs(), server.shop.handed()), (1, 2), "one is a replay");
        assert_eq!(pay().await.status(), 500);
        assert_eq!((server.shop.runs(), server.shop.handed()), (1, 3));
    }

    async fn a_middleware_around_it_sends_the_same_key() {
        let told = Told::new(&[]);
        let url = told.serve().await;
        let twice = reqwest::Client::builder().no_proxy().build().unwrap();
        let twice = ClientBuilder::new(twice).with(Twice).with(IdempotentRetries::new()).build();
        assert_eq!(twice.post(url).body("500").send().await.unwrap().status(), 200);
        let keys = told.keys();
        assert!(keys.len() == 2 && keys[0] == keys[1], "{keys:?}");
    }

    async fn it_waits_as_long_as_the_server_says() {
        let waits = async |after: &str| {
            let began = Instant::now();
            let (status, _) = post(IdempotentRetries::new(), &[(429, Some(after))]).await;
            assert_eq!(status, 200);
            began.elapsed()
        };
        assert!(waits("1").await >= Duration::from_secs(1));
        // A date has whole seconds.
        #[allow(clippy::disallowed_methods, reason = "a date for the header")]
        let date = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(3));
        assert!(waits(&date).await >= Duration::from_millis(1_500));
    }

    async fn it_gives_up_in_the_end() {
        let busy = [(503, None); 9];
        let (status, keys) = post(IdempotentRetries::new().tries(3), &busy).await;
        assert_eq!((status, keys.len()), (503, 3));
        // One that is in flight is waited for.
        let (status, keys) = post(IdempotentRetries::new().tries(1), &[(409, Some("0")); 3]).await;
        assert_eq!((status, keys.len()), (200, 4));
        // It does not wait for that.
        let brief = IdempotentRetries::new().give_up_after(Duration::from_secs(2));
        for after in ["3600", "18446744073709551615"] {
            let (status, keys) = post(brief.clone(), &[(503, Some(after))]).await;
            assert_eq!((status, keys.len()), (503, 1));
        }
    }

    async fn a_connection_that_breaks_is_no_end() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let serving = tokio::spawn(async move {
            let mut keys = Vec::new();
            for n in 0..3 {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = [0; 2_000];
                let read = stream.read(&mut request).await.unwrap();
                let request = String::from_utf8_lossy(&request[..read]).to_lowercase();
                let key = request.lines().find(|line| line.starts_with("idempotency-key"));
                keys.push(key.unwrap().to_owned());
                // The response is lost, twice.
                if n == 2 {
                    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
                }
            }
            keys
        });
        let sent = client(IdempotentRetries::new()).post(url).body("500").send().await;
        assert_eq!(sent.unwrap().status(), 200);
        let keys = serving.await.unwrap();
        assert!(keys.len() == 3 && keys.iter().all(|key| key == &keys[0]), "{keys:?}");
    }

    async fn what_needs_no_key_passes_untouched_and_a_key_of_the_application_stays() {
        let told = Told::new(&[(503, None), (503, None)]);
        let url = told.serve().await;
        let client = client(IdempotentRetries::new());
        assert_eq!(client.get(&url).send().await.unwrap().status(), 503);
        let own = client.post(&url).header("idempotency-key", "\"order-17\"");
        assert_eq!(own.send().await.unwrap().status(), 200);
        let own = Some("\"order-17\"".to_owned());
        assert_eq!(told.keys(), [None, own.clone(), own]);
    }

    async fn a_stream_is_sent_once_and_has_a_key() {
        let told = Told::new(&[(503, None)]);
        let url = told.serve().await;
        let body = futures_util::stream::iter([Ok::<_, std::io::Error>("5"), Ok("00")]);
        let body = reqwest::Body::wrap_stream(body);
        let sent = client(IdempotentRetries::new()).post(url).body(body).send().await;
        assert_eq!(sent.unwrap().status(), 503);
        assert!(told.keys().len() == 1 && told.keys()[0].is_some());
    }

    async fn with_the_layer_a_request_takes_effect_once_though_it_is_sent_while_the_first_runs() {
        let server = Server::plain().await;
        let running = tokio::spawn(send(server.pay("k", "wait")));
        eventually("it runs", || async { server.shop.has_begun("k") }).await;
        let second = client(IdempotentRetries::new()).post(format!("http://{}/pay", server.address));
        let second = second.header("x-user", "ann").header("idempotency-key", "\"k\"").body("100");
        let second = tokio::spawn(second.header("x-act", "201").send());
        eventually("it was handed the second", || async { server.shop.handed() >= 2 }).await;
        server.shop.gate.add_permits(1);
        let first = running.await.unwrap();
        let second = second.await.unwrap().unwrap();
        assert_eq!(second.status(), 201);
        assert_eq!(second.headers()["idempotent-replayed"], "true");
        assert_eq!(second.bytes().await.unwrap(), first.body);
        assert_eq!(server.effects().await, 1);
    }

    async fn only_what_says_so_is_a_replay() {
        for (said, count) in [("false", 2), ("?0", 2), ("true", 1), ("?1", 1), ("True", 1)] {
            let told = Told::with([(503, [("idempotent-replayed", said)])]);
            let (_, keys) = sends(IdempotentRetries::new(), told).await;
            assert_eq!(keys.len(), count, "{said}");
        }
    }

    async fn a_retry_after_counts_whatever_it_says() {
        // More seconds than a number has room for.
        let brief = IdempotentRetries::new().give_up_after(Duration::from_secs(20));
        for after in ["99999999999999999999999999", "1e99"] {
            let (status, keys) = post(brief.clone(), &[(503, Some(after))]).await;
            assert_eq!((status, keys.len()), (503, 1), "{after}");
        }
        let began = Instant::now();
        for after in ["1.5", "soon", "-1", ""] {
            let (status, keys) = post(brief.clone(), &[(409, Some(after))]).await;
            assert_eq!((status, keys.len()), (200, 2), "{after}");
        }
        assert!(began.elapsed() >= Duration::from_millis(1_500), "1.5 is waited for");
    }

    /// The client's clock is an hour behind, or ahead.
    async fn a_date_counts_by_the_clock_of_the_server() {
        #[allow(clippy::disallowed_methods, reason = "a date for the header")]
        let now = SystemTime::now();
        let hour = Duration::from_hours(1);
        for server in [now + hour, now - hour] {
            let [date, after] = [server, server + Duration::from_secs(2)].map(httpdate::fmt_http_date);
            let told = Told::with([(503, [("date", &*date), ("retry-after", &*after)])]);
            let began = Instant::now();
            let retries = IdempotentRetries::new().give_up_after(hour / 2);
            let (status, keys) = sends(retries, told).await;
            assert_eq!((status, keys.len()), (200, 2));
            assert!(began.elapsed() >= Duration::from_secs(2));
        }
    }

    async fn a_request_that_the_server_did_not_get_wholly_is_sent_again() {
        let (status, keys) = post(IdempotentRetries::new(), &[(400, Some("0"))]).await;
        assert_eq!((status, keys.len()), (200, 2));
    }
}
