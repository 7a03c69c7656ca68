//! How actix-web serves the shop.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::thread;
use std::time::Duration;

use actix_web::body::{BodySize, MessageBody};
use actix_web::dev::{ServerHandle, Service};
use actix_web::http::StatusCode;
use actix_web::http::header;
use actix_web::web::{self, Bytes};
use actix_web::{App, HttpMessage, HttpRequest, HttpResponse, HttpServer, rt};
use axum::body::{Body, HttpBody};
use axum::extract::State;
use axum::http::{HeaderMap, Request};
use axum::response::Response;
use rowlock_http::actix::IdempotencyMiddleware;
use rowlock_http::{IdempotencyLayer, Idempotent};
use tokio::sync::oneshot;

use crate::shop::{Shop, handle};

/// It serves until it is told to stop, or as long as the test's process.
pub(crate) struct Serving {
    pub(crate) address: SocketAddr,
    server: ServerHandle,
}

impl Serving {
    /// Takes no more connections, and waits for the end of those that there are.
    pub(crate) async fn stop(self) {
        self.server.stop(true).await;
    }
}

/// All routes are inside the layer.
pub(crate) async fn serve(layer: IdempotencyLayer, shop: &Arc<Shop>) -> Serving {
    serve_app(shop, move |shop, config| {
        config.service(
            web::scope("")
                .wrap(IdempotencyMiddleware::new(layer.clone()))
                .app_data(web::Data::from(Arc::clone(shop)))
                .app_data(web::PayloadConfig::new(usize::MAX))
                .default_service(web::to(act)),
        );
    })
    .await
}

pub(crate) async fn serve_app(
    shop: &Arc<Shop>,
    routes: impl Fn(&Arc<Shop>, &mut web::ServiceConfig) + Clone + Send + 'static,
) -> Serving {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (started, server) = oneshot::channel();
    let shop = Arc::clone(shop);
    // actix-web has runtimes of its own.
    thread::spawn(move || {
        let app = move || {
            let (shop, watched, routes) = (Arc::clone(&shop), Arc::clone(&shop), routes.clone());
            App::new()
                .configure(move |config| routes(&shop, config))
                .wrap_fn(move |request, service| {
                    // Dropped with the answer that nobody waits for any more.
                    let watch = watched.watch(&headers(request.headers()));
                    let answer = service.call(request);
                    async move {
                        let answer = answer.await?;
                        watch.answered();
                        Ok(answer)
                    }
                })
        };
        // The server closes a connection at once if its body was not read. The layer reads it.
        let server = HttpServer::new(app).client_disconnect_timeout(Duration::ZERO);
        let server = server.workers(2).disable_signals();
        let server = server.listen(listener).unwrap().run();
        started.send(server.handle()).unwrap();
        rt::System::new().block_on(server).unwrap();
    });
    let server = server.await.unwrap();
    Serving { address, server }
}

fn headers(from: &header::HeaderMap) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in from {
        let name: axum::http::HeaderName = name.as_str().parse().unwrap();
        headers.append(
            name,
            axum::http::HeaderValue::from_bytes(value.as_bytes()).unwrap(),
        );
    }
    headers
}

/// The shop's handler.
async fn act(shop: web::Data<Shop>, request: HttpRequest, body: Bytes) -> HttpResponse {
    let asked = Request::builder()
        .method(request.method().as_str())
        .uri(request.uri().to_string());
    let mut asked = asked.body(Body::from(body)).unwrap();
    *asked.headers_mut() = headers(request.headers());
    if let Some(attempt) = request.extensions().get::<Idempotent>() {
        asked.extensions_mut().insert(attempt.clone());
    }
    let shop = State(shop.into_inner());
    answer(handle(shop, asked).await)
}

fn answer(response: Response) -> HttpResponse {
    let (head, body) = response.into_parts();
    let status = StatusCode::from_u16(head.status.as_u16()).unwrap();
    let mut answer = HttpResponse::build(status);
    for (name, value) in &head.headers {
        answer.append_header((name.as_str(), value.as_bytes()));
    }
    answer.body(Sending(body))
}

/// axum's body.
struct Sending(Body);

impl MessageBody for Sending {
    type Error = io::Error;

    fn size(&self) -> BodySize {
        match self.0.size_hint().exact() {
            Some(bytes) => BodySize::Sized(bytes),
            None => BodySize::Stream,
        }
    }

    fn poll_next(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, io::Error>>> {
        let frame = ready!(Pin::new(&mut self.0).poll_frame(cx));
        Poll::Ready(frame.map(|frame| match frame {
            Ok(frame) => Ok(frame.into_data().unwrap()),
            Err(error) => Err(io::Error::other(error)),
        }))
    }
}
