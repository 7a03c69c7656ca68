//! The way from the layer's task, which may run anywhere, to the handler, which stays on its worker's thread.

use std::future::{Future, poll_fn};
use std::panic::resume_unwind;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use actix_web::body::MessageBody;
use actix_web::dev::{Payload, Service, ServiceRequest, ServiceResponse};
use actix_web::error::{ContentTypeError, JsonPayloadError, PayloadError};
use actix_web::{Error, HttpMessage, HttpRequest, HttpResponse, rt};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use tokio::select;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tracing::{Instrument, Span};

use super::{AHEAD, broken, convert};
use crate::body::BoxError;
use crate::handle::Idempotent;
use crate::panics;

type Part = Result<Bytes, BoxError>;

/// A part of the handler's response. `None`: its end. (A task that has panicked sends none.)
type Sent = Option<Part>;

/// A request for the handler, and the way back.
pub(super) struct Call {
    request: Request<RequestBody>,
    reply: oneshot::Sender<Response<HandlerBody>>,
    /// The request's, for what the handler logs.
    span: Span,
}

/// The handler, as the layer sees it. Dropping the future of a call drops the handler.
pub(super) struct Bridge {
    calls: Option<oneshot::Sender<Call>>,
    handler: Option<JoinHandle<()>>,
}

/// The handler has ended without a response.
#[derive(Debug)]
pub(super) struct Gone;

impl Bridge {
    pub(super) fn new(calls: oneshot::Sender<Call>, handler: JoinHandle<()>) -> Self {
        Self {
            calls: Some(calls),
            handler: Some(handler),
        }
    }
}

impl tower_service::Service<Request<RequestBody>> for Bridge {
    type Response = Response<HandlerBody>;
    type Error = Gone;
    type Future = Pin<Box<dyn Future<Output = Result<Response<HandlerBody>, Gone>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Gone>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<RequestBody>) -> Self::Future {
        let (calls, handler) = (self.calls.take(), self.handler.take());
        Box::pin(async move {
            let (reply, replied) = oneshot::channel();
            let (Some(calls), Some(handler)) = (calls, handler) else {
                return Err(Gone);
            };
            let span = Span::current();
            let call = Call {
                request,
                reply,
                span,
            };
            if calls.send(call).is_ok()
                && let Ok(mut response) = replied.await
            {
                response.body_mut().handler = Some(handler);
                return Ok(response);
            }
            match handler.await {
                Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
                _ => Err(Gone),
            }
        })
    }
}

/// Runs the handler when the layer calls it, and sends its response. Returns the request, for actix-web's response:
/// when the layer does not call, or when the handler has returned.
pub(super) async fn handle<S, B>(
    inner: Rc<S>,
    request: HttpRequest,
    called: oneshot::Receiver<Call>,
    ends: oneshot::Sender<HttpRequest>,
) where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error>,
    B: MessageBody + 'static,
{
    let Ok(Call {
        request: call,
        mut reply,
        span,
    }) = called.await
    else {
        let _ = ends.send(request);
        return;
    };
    let (head, body) = call.into_parts();
    let attempt = head.extensions.get::<Idempotent>().cloned();
    // A layer outside of this one may have one, too.
    let outer = (attempt.clone()).and_then(|attempt| request.extensions_mut().insert(attempt));
    let request = ServiceRequest::from_parts(request, body.into_payload());
    let answer = span.in_scope(|| inner.call(request)).instrument(span);
    let answer = select! {
        biased;
        // The layer has cut the handler off: it is not polled again.
        () = reply.closed() => return,
        answer = answer => answer,
    };
    match answer {
        Ok(answer) => {
            let (request, response) = answer.into_parts();
            if response.error().is_some_and(is_wrong_type) {
                nothing_happened([&attempt, &outer]);
            }
            // The attempt runs while somebody has it.
            drop((attempt, request.extensions_mut().remove::<Idempotent>()));
            if let Some(outer) = outer {
                request.extensions_mut().insert(outer);
            }
            let _ = ends.send(request);
            send(response, reply).await;
        }
        Err(error) => {
            // The request has gone with the handler, or with a middleware that has extracted before it.
            if is_wrong_type(&error) {
                nothing_happened([&attempt, &outer]);
            }
            drop((attempt, ends));
            send(error.error_response(), reply).await;
        }
    }
}

/// The retry may send another Content-Type.
fn nothing_happened(attempts: [&Option<Idempotent>; 2]) {
    for attempt in attempts.into_iter().flatten() {
        attempt.nothing_happened();
    }
}

/// Whether an extractor has refused the Content-Type: actix-web answers so with 400, as for content that is wrong.
fn is_wrong_type(error: &Error) -> bool {
    let json = error.as_error::<JsonPayloadError>();
    json.is_some_and(|error| matches!(error, JsonPayloadError::ContentType))
        || error.as_error::<ContentTypeError>().is_some()
}

/// Sends the response, and then its body.
async fn send<B: MessageBody>(
    response: HttpResponse<B>,
    reply: oneshot::Sender<Response<HandlerBody>>,
) {
    let (head, body) = response.into_parts();
    let (parts, arriving) = mpsc::channel(AHEAD);
    let sent = HandlerBody {
        parts: arriving,
        left: panics::catch("MessageBody::size", || convert::length(body.size())).flatten(),
        is_over: false,
        handler: None,
    };
    if reply.send(convert::answer(&head, sent)).is_err() {
        return;
    }
    let mut body = pin!(body);
    loop {
        let part = select! {
            biased;
            // Nobody reads on.
            () = parts.closed() => return,
            part = poll_fn(|cx| body.as_mut().poll_next(cx)) => part,
        };
        let part = part.map(convert::part);
        let is_over = !matches!(part, Some(Ok(_)));
        if parts.send(part).await.is_err() || is_over {
            return;
        }
    }
}

/// Hands on the body of a request as it arrives.
async fn feed(mut payload: Payload, parts: mpsc::Sender<Part>) {
    loop {
        let part = select! {
            biased;
            // Nobody reads on.
            () = parts.closed() => return,
            part = payload.next() => part,
        };
        let Some(part) = part else {
            return;
        };
        let part = part.map_err(|error| broken(error).into());
        let is_over = part.is_err();
        if parts.send(part).await.is_err() || is_over {
            return;
        }
    }
}

/// The body of a request.
pub(super) enum RequestBody {
    Arriving(mpsc::Receiver<Part>),
    Whole(Bytes),
}

impl RequestBody {
    pub(super) fn arriving(payload: Payload) -> Self {
        let (chunks, body) = mpsc::channel(AHEAD);
        rt::spawn(feed(payload, chunks));
        Self::Arriving(body)
    }

    fn into_payload(self) -> Payload {
        let bytes = match self {
            Self::Whole(bytes) => Ok(bytes),
            // The layer reads each body to its end.
            Self::Arriving(_) => Err(PayloadError::Incomplete(None)),
        };
        let payload = Box::pin(stream::iter([bytes]));
        Payload::Stream { payload }
    }
}

impl From<Bytes> for RequestBody {
    fn from(bytes: Bytes) -> Self {
        Self::Whole(bytes)
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut *self {
            Self::Arriving(parts) => parts.poll_recv(cx).map(|part| Some(part?.map(Frame::data))),
            Self::Whole(bytes) => {
                let bytes = std::mem::take(bytes);
                Poll::Ready((!bytes.is_empty()).then(|| Ok(Frame::data(bytes))))
            }
        }
    }
}

/// The body of the handler's response.
pub(super) struct HandlerBody {
    parts: mpsc::Receiver<Sent>,
    /// `None`: its length is not known.
    left: Option<u64>,
    is_over: bool,
    /// Its task, which sends the parts.
    handler: Option<JoinHandle<()>>,
}

impl Body for HandlerBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        let Some(part) = ready!(self.parts.poll_recv(cx)) else {
            let handler = self.handler.as_mut();
            let ended = handler.map_or(Poll::Ready(Ok(())), |handler| Pin::new(handler).poll(cx));
            let ended = ready!(ended);
            self.is_over = true;
            if let Err(error) = ended
                && error.is_panic()
            {
                resume_unwind(error.into_panic());
            }
            let error = broken("the body of the response broke off");
            return Poll::Ready(Some(Err(error.into())));
        };
        self.is_over = !matches!(part, Some(Ok(_)));
        if let (Some(Ok(part)), Some(left)) = (&part, &mut self.left) {
            *left = left.saturating_sub(part.len() as u64);
        }
        Poll::Ready(part.map(|part| part.map(Frame::data)))
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::new, SizeHint::with_exact)
    }
}
