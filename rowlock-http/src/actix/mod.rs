//! The layer for actix-web, with the feature `actix`: the same settings, records and [problems](crate#problems) as for
//! tower and axum.
//!
//! ```no_run
//! use actix_web::{App, HttpMessage, HttpResponse, HttpServer, web};
//! use rowlock_http::actix::IdempotencyMiddleware;
//! use rowlock_http::{Idempotent, IdempotencyLayer};
//!
//! #[derive(Clone)]
//! struct User(String);
//!
//! async fn pay(once: Idempotent, body: String) -> HttpResponse {
//!     // … the payment, with `once.downstream_key("charge")` for the provider …
//!     HttpResponse::Created().body("paid")
//! }
//!
//! # async fn f() -> Result<(), Box<dyn std::error::Error>> {
//! let rowlock = rowlock::Rowlock::connect("sqlite:shop.db?mode=rwc").await?;
//! let layer = IdempotencyLayer::new(rowlock.idempotency(), |parts| {
//!     parts.extensions.get::<User>().map(|user| user.0.clone())
//! });
//! layer.check()?;
//! // Who it is, as the authentication in front of the layer has found out.
//! let once = IdempotencyMiddleware::new(layer).extensions(|request, extensions| {
//!     if let Some(user) = request.extensions().get::<User>() {
//!         extensions.insert(user.clone());
//!     }
//! });
//! HttpServer::new(move || {
//!     // Around the routes that need it: around the whole App, the layer would keep its 404s, too.
//!     App::new().service(web::resource("/payments").wrap(once.clone()).route(web::post().to(pay)))
//! })
//! .bind("127.0.0.1:8080")?
//! .run()
//! .await?;
//! # Ok(())
//! # }
//! ```
//!
//! The handler gets its attempt as the argument [`Idempotent`]. What it keeps in a transaction ([`Idempotent::in_tx`],
//! [`Idempotent::complete_in`]) is a response of the crate `http` (1), and [`into_response`] makes actix-web's of it:
//!
//! ```
//! use actix_web::{HttpResponse, error, web};
//! use rowlock_http::{Idempotent, actix::into_response};
//!
//! async fn pay(pool: web::Data<sqlx::SqlitePool>, once: Idempotent, body: String) -> Result<HttpResponse, actix_web::Error> {
//!     let body = &body;
//!     let paid = once.in_tx(&**pool, async |mut tx| {
//!         sqlx::query("INSERT INTO payment VALUES (?)").bind(body).execute(&mut *tx).await?;
//!         let paid = http::Response::builder().status(201).body("paid".to_owned());
//!         Ok::<_, rowlock::Error>(paid.unwrap_or_default())
//!     });
//!     Ok(into_response(paid.await.map_err(error::ErrorInternalServerError)?))
//! }
//! # let _ = actix_web::App::new().route("/payments", web::post().to(pay));
//! ```
//!
//! actix-web's extractors have limits of their own (`String` and `Bytes`: 256 KiB): set `web::PayloadConfig` to the
//! layer's [`max_body`](crate::IdempotencyLayer::max_body). Otherwise a larger body gets actix-web's 413, which frees
//! the key. A wrong Content-Type does, too, though the extractor `Json` refuses it with 400. So a handler must not
//! return such an error (`JsonPayloadError::ContentType`, `ContentTypeError`) after it has done something. (If an
//! [`error_handler`](actix_web::web::JsonConfig::error_handler) of yours makes a response of that error, let it say
//! 415: the layer keeps a 400 then.)
//!
//! # Failure
//!
//! As for tower: when the client hangs up, the handler goes on. A handler that is cut off
//! ([`max_run`](crate::IdempotencyLayer::max_run), [`drain`](crate::IdempotencyLayer::drain)) is dropped at its next
//! await point. An error that the handler returns counts by the response that actix-web makes of it.
//!
//! Each answer is a response, which passes the middlewares outside (CORS, for example), also when the handler was cut
//! off or has panicked, or a middleware inside of this one returned an error. Then the request is gone, and its
//! response has another one for those middlewares: with the same method, URI, headers and peer, and without
//! extensions, app data and the route's pattern.
//!
//! *The server stops*: actix-web's handlers are on threads of the server, and end with it, whether or not they are
//! done; that is a crash to the layer. So drain the layer first, while the server still runs: switch its own signals
//! off ([`HttpServer::disable_signals`](actix_web::HttpServer::disable_signals)), and on a signal call
//! [`drain`](crate::IdempotencyLayer::drain), then [`ServerHandle::stop`](actix_web::dev::ServerHandle::stop), then
//! [`Rowlock::shutdown`](rowlock::Rowlock::shutdown).

mod bridge;
mod convert;

use std::future::{Future, Ready, ready};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::{fmt, io};

use actix_web::body::{BoxBody, MessageBody};
use actix_web::dev::{Payload, Service, ServiceRequest, ServiceResponse, Transform};
use actix_web::{Error, FromRequest, HttpMessage, HttpRequest, HttpResponse, ResponseError, rt};
use http::{Extensions, HeaderMap, Request};
use tokio::sync::oneshot;

use self::bridge::{Bridge, RequestBody};
use crate::body::ResponseBody;
use crate::collect::discard;
use crate::extract::NoAttempt;
use crate::handle::Idempotent;
use crate::layer::IdempotencyLayer;
use crate::panics;
use crate::problem::Problem;
use crate::service::{ADMITS, admit};
use crate::settings::Settings;

/// How many parts of a body wait for their reader.
const AHEAD: usize = 4;

type Copy = dyn Fn(&ServiceRequest, &mut Extensions) + Send + Sync;

/// The layer, as a middleware of actix-web; see [the module](self). Cloning is cheap: make one, and clone it into each
/// worker's `App`.
#[derive(Clone)]
#[must_use = "it does nothing by itself"]
pub struct IdempotencyMiddleware {
    settings: Arc<Settings>,
    copy: Option<Arc<Copy>>,
}

impl IdempotencyMiddleware {
    /// With the settings of `layer`. [`IdempotencyLayer::drain`] on that layer, or on a clone of it, ends this
    /// middleware, too.
    pub fn new(layer: IdempotencyLayer) -> Self {
        Self {
            settings: layer.into_settings(),
            copy: None,
        }
    }

    /// Gives the hooks of the layer (the principal, for example) what they need of actix-web's request. They see its
    /// method, its URI, its headers, and the extensions that this function fills.
    pub fn extensions(
        mut self,
        copy: impl Fn(&ServiceRequest, &mut Extensions) + Send + Sync + 'static,
    ) -> Self {
        self.copy = Some(Arc::new(copy));
        self
    }
}

impl fmt::Debug for IdempotencyMiddleware {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyMiddleware")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl<S, B> Transform<S, ServiceRequest> for IdempotencyMiddleware
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error> + 'static,
    B: MessageBody + 'static,
{
    type Response = ServiceResponse<BoxBody>;
    type Error = Error;
    type Transform = IdempotencyService<S>;
    type InitError = ();
    type Future = Ready<Result<Self::Transform, ()>>;

    fn new_transform(&self, service: S) -> Self::Future {
        ready(Ok(IdempotencyService {
            inner: Rc::new(service),
            middleware: self.clone(),
        }))
    }
}

/// A service inside an [`IdempotencyMiddleware`].
pub struct IdempotencyService<S> {
    inner: Rc<S>,
    middleware: IdempotencyMiddleware,
}

impl<S> fmt::Debug for IdempotencyService<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyService").finish_non_exhaustive()
    }
}

type Answered = Pin<Box<dyn Future<Output = Result<ServiceResponse<BoxBody>, Error>>>>;

impl<S, B> Service<ServiceRequest> for IdempotencyService<S>
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error> + 'static,
    B: MessageBody + 'static,
{
    type Response = ServiceResponse<BoxBody>;
    type Error = Error;
    type Future = Answered;

    actix_web::dev::forward_ready!(inner);

    fn call(&self, request: ServiceRequest) -> Answered {
        let settings = Arc::clone(&self.middleware.settings);
        let mut head = match convert::head(request.request()) {
            Ok(head) => head,
            Err(error) => {
                let refusal = HttpResponse::BadRequest().body(error.to_string());
                return refuse(request, HeaderMap::new(), refusal);
            }
        };
        let admitted = panics::catch(ADMITS, || {
            if let Some(outer) = request.extensions().get::<Idempotent>() {
                head.extensions.insert(outer.clone());
            }
            if let Some(copy) = &self.middleware.copy {
                copy(&request, &mut head.extensions);
            }
            admit::<RequestBody>(&settings, &head)
        });
        let inner = Rc::clone(&self.inner);
        match admitted.unwrap_or(Err(Problem::HandlerPanicked)) {
            Ok(None) => {
                let answer = inner.call(request);
                Box::pin(async move { Ok(answer.await?.map_into_boxed_body()) })
            }
            Err(problem) => {
                let refusal = convert::response(settings.response(&problem));
                refuse(request, head.headers, refusal)
            }
            Ok(Some(asked)) => Box::pin(async move {
                let (request, payload) = request.into_parts();
                let same = convert::same(&request);
                let body = RequestBody::arriving(payload);
                let (calls, called) = oneshot::channel();
                let (ends, ended) = oneshot::channel();
                let handler = rt::spawn(bridge::handle(inner, request, called, ends));
                let bridge = Bridge::new(calls, handler);
                let answer = asked.answer(bridge, Request::from_parts(head, body)).await;
                let answer =
                    answer.unwrap_or_else(|_| settings.response(&Problem::HandlerPanicked));
                // If the handler was cut off or has failed, its request has gone with it.
                let request = ended.await.unwrap_or_else(|_| same.to_http_request());
                Ok(ServiceResponse::new(request, convert::response(answer)))
            }),
        }
    }
}

/// Answers when the client has written its body, or most of it: how long actix-web reads on by itself is a setting.
fn refuse(request: ServiceRequest, headers: HeaderMap, refusal: HttpResponse) -> Answered {
    let (request, payload) = request.into_parts();
    Box::pin(async move {
        discard(&headers, pin!(RequestBody::arriving(payload))).await;
        Ok(ServiceResponse::new(request, refusal.map_into_boxed_body()))
    })
}

/// The attempt of this request, for handlers inside of an [`IdempotencyMiddleware`]. Take `Option<Idempotent>` where a
/// request may have no key.
impl FromRequest for Idempotent {
    type Error = NoAttempt;
    type Future = Ready<Result<Self, NoAttempt>>;

    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        let attempt = request.extensions().get::<Self>().cloned();
        ready(attempt.ok_or(NoAttempt))
    }
}

impl ResponseError for NoAttempt {
    fn error_response(&self) -> HttpResponse {
        tracing::error!(error = %self, "a request is refused");
        HttpResponse::InternalServerError().finish()
    }
}

/// Makes actix-web's response of one that [`Idempotent::in_tx`] or [`Idempotent::complete_in`] has kept.
#[must_use]
pub fn into_response(response: axum::response::Response) -> HttpResponse {
    convert::response(response.map(ResponseBody::new))
}

/// A body that broke off.
fn broken(error: impl fmt::Display) -> io::Error {
    io::Error::other(error.to_string())
}
