//! The body of a response. The layer can read it ahead, and still send it from its start.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http::Response;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;

pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// After so many bytes of a body that was read ahead, other tasks run: a megabyte at once would delay them. (hyper
/// polls a body once more before other tasks run. So with hyper it is twice as many.)
const PIECE: usize = 64 << 10;

/// The response of the layer's service.
pub(crate) type Answer<E> = Result<Response<ResponseBody>, E>;

/// The body of a response from the layer: the handler's body, a replayed body, or a problem.
pub struct ResponseBody {
    ready: VecDeque<Frame<Bytes>>,
    rest: Rest,
    /// The length of the rest, if the body has told it.
    left: Option<u64>,
    /// The bytes that were sent since other tasks could run.
    sent: usize,
    /// The next poll lets other tasks run.
    gives_way: bool,
}

enum Rest {
    Body(UnsyncBoxBody<Bytes, BoxError>),
    /// The body has failed. The error comes one poll later: a server drops the bytes that it has not sent when a body
    /// fails.
    Failing(BoxError),
    Failed(BoxError),
    Done,
}

/// The result of reading ahead.
#[derive(Debug)]
pub(crate) enum Ahead {
    /// The whole body.
    Whole(Vec<u8>),
    /// The whole body, and trailers. A kept response has no place for trailers.
    Trailers,
    /// The body has at least this many bytes.
    TooLarge { bytes: usize },
    /// The body broke off, with this error.
    Failed(String),
}

impl ResponseBody {
    pub(crate) fn new<B>(body: B) -> Self
    where
        B: Body + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let left = body.size_hint().exact();
        let whole = |mut data: B::Data| data.copy_to_bytes(data.remaining());
        let body = body
            .map_frame(move |frame| frame.map_data(whole))
            .map_err(Into::into);
        Self {
            ready: VecDeque::new(),
            rest: Rest::Body(UnsyncBoxBody::new(body)),
            left,
            sent: 0,
            gives_way: false,
        }
    }

    pub(crate) fn of(bytes: Bytes) -> Self {
        Self {
            ready: (!bytes.is_empty())
                .then(|| Frame::data(bytes))
                .into_iter()
                .collect(),
            rest: Rest::Done,
            left: None,
            sent: 0,
            gives_way: false,
        }
    }

    /// Reads to the end, or until there are more than `limit` bytes.
    pub(crate) async fn read_ahead(&mut self, limit: usize) -> Ahead {
        let known = usize::try_from(self.size_hint().lower()).unwrap_or(usize::MAX);
        if known > limit {
            return Ahead::TooLarge { bytes: known };
        }
        let mut bytes = Vec::with_capacity(known);
        let mut trailers = false;
        // What was read ahead before.
        for frame in &self.ready {
            bytes.extend_from_slice(frame.data_ref().map_or(&[], |data| data));
            trailers |= frame.trailers_ref().is_some_and(|map| !map.is_empty());
        }
        while let Rest::Body(body) = &mut self.rest {
            // Frames may come without a pause. This lets other tasks run, and the time limit end the reading.
            tokio::task::consume_budget().await;
            match body.frame().await {
                None => self.rest = Rest::Done,
                // It would take room, and count for nothing.
                Some(Ok(frame)) if frame.data_ref().is_some_and(Bytes::is_empty) => {}
                Some(Ok(frame)) => {
                    self.left = still_left(self.left, &frame);
                    if let Some(data) = frame.data_ref() {
                        bytes.extend_from_slice(data);
                    }
                    trailers |= frame.trailers_ref().is_some_and(|map| !map.is_empty());
                    self.ready.push_back(frame);
                    if bytes.len() > limit {
                        return Ahead::TooLarge { bytes: bytes.len() };
                    }
                }
                Some(Err(error)) => {
                    let said = error.to_string();
                    self.rest = Rest::Failing(error);
                    return Ahead::Failed(said);
                }
            }
        }
        if self.left.is_some_and(|left| left > 0) {
            let error = "it ends before its length";
            self.rest = Rest::Failing(error.into());
            Ahead::Failed(error.into())
        } else if trailers {
            Ahead::Trailers
        } else {
            Ahead::Whole(bytes)
        }
    }

    /// The next piece of what was read ahead.
    fn piece(&mut self) -> Option<Frame<Bytes>> {
        let mut data = match self.ready.pop_front()?.into_data() {
            Ok(data) => data,
            Err(trailers) => return Some(trailers),
        };
        let room = PIECE - self.sent;
        if data.len() > room {
            let rest = data.split_off(room);
            self.ready.push_front(Frame::data(rest));
        }
        self.sent += data.len();
        if self.sent == PIECE {
            self.sent = 0;
            self.gives_way = !self.ready.is_empty();
        }
        Some(Frame::data(data))
    }
}

/// The length of the rest after a frame.
fn still_left(left: Option<u64>, frame: &Frame<Bytes>) -> Option<u64> {
    let length = frame.data_ref().map_or(0, |data| data.len() as u64);
    left.map(|left| left.saturating_sub(length))
}

impl fmt::Debug for ResponseBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseBody").finish_non_exhaustive()
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if std::mem::take(&mut self.gives_way) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if let Some(piece) = self.piece() {
            return Poll::Ready(Some(Ok(piece)));
        }
        let frame = match std::mem::replace(&mut self.rest, Rest::Done) {
            Rest::Body(mut body) => {
                let frame = Pin::new(&mut body).poll_frame(cx);
                if matches!(frame, Poll::Pending | Poll::Ready(Some(Ok(_)))) {
                    self.rest = Rest::Body(body);
                }
                if let Poll::Ready(Some(Ok(frame))) = &frame {
                    self.left = still_left(self.left, frame);
                }
                ready!(frame)
            }
            Rest::Failing(error) => {
                self.rest = Rest::Failed(error);
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            Rest::Failed(error) => Some(Err(error)),
            Rest::Done => None,
        };
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.ready.is_empty()
            && match &self.rest {
                Rest::Body(body) => body.is_end_stream(),
                Rest::Failing(_) | Rest::Failed(_) => false,
                Rest::Done => true,
            }
    }

    fn size_hint(&self) -> SizeHint {
        let data = self.ready.iter().filter_map(Frame::data_ref);
        let ready = data.map(|data| data.len() as u64).sum::<u64>();
        let rest = match &self.rest {
            Rest::Body(body) => self
                .left
                .map_or_else(|| body.size_hint(), SizeHint::with_exact),
            Rest::Failing(_) | Rest::Failed(_) => SizeHint::new(),
            Rest::Done => SizeHint::with_exact(0),
        };
        let mut hint = SizeHint::new();
        hint.set_lower(ready + rest.lower());
        // A server sends no trailers after a body of a known length.
        let trailers = self.ready.iter().any(Frame::is_trailers);
        if let (Some(upper), false) = (rest.upper(), trailers) {
            hint.set_upper(ready + upper);
        }
        hint
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::time::Duration;

    use futures_util::{StreamExt as _, stream};
    use http_body_util::StreamBody;
    use tokio::task::yield_now;
    use tokio::time::timeout;

    use super::*;

    /// In frames of this size.
    async fn read_ahead(bytes: &Bytes, size: usize) -> ResponseBody {
        let mut rest = bytes.clone();
        let frames = std::iter::from_fn(|| {
            let frame = rest.split_to(size.min(rest.len()));
            (!frame.is_empty()).then(|| Ok::<_, BoxError>(Frame::data(frame)))
        });
        let frames: Vec<_> = frames.collect();
        let mut body = ResponseBody::new(StreamBody::new(stream::iter(frames)));
        let all = body.read_ahead(bytes.len()).await;
        assert!(matches!(all, Ahead::Whole(_)));
        body
    }

    #[tokio::test]
    async fn empty_frames_take_no_room_and_end_with_the_time() {
        let empty = || Ok::<_, BoxError>(Frame::data(Bytes::new()));
        let one = stream::iter([Ok(Frame::data(Bytes::from_static(b"x")))]);
        let mut body = ResponseBody::new(StreamBody::new(
            stream::repeat_with(empty).take(100).chain(one),
        ));
        assert!(matches!(body.read_ahead(1).await, Ahead::Whole(_)));
        assert_eq!(body.ready.len(), 1);
        let mut endless = ResponseBody::new(StreamBody::new(stream::repeat_with(empty)));
        let read = timeout(Duration::from_millis(10), endless.read_ahead(1));
        assert!(read.await.is_err(), "it has no end");
        assert!(endless.ready.is_empty());
    }

    #[tokio::test]
    async fn other_tasks_have_a_turn_after_each_piece_of_a_large_body() {
        let bytes: Bytes = (0..=u8::MAX).cycle().take(PIECE * 3 + 1).collect();
        let mut bodies = vec![ResponseBody::of(bytes.clone())];
        for size in [bytes.len(), PIECE, 1_000] {
            bodies.push(read_ahead(&bytes, size).await);
        }
        for mut body in bodies {
            let (mut sent, turns) = (Vec::new(), Cell::new(0));
            let sends = async {
                loop {
                    let left = (bytes.len() - sent.len()) as u64;
                    assert_eq!(body.size_hint().exact(), Some(left));
                    assert_eq!(body.is_end_stream(), left == 0);
                    let before = turns.get();
                    let Some(frame) = body.frame().await else {
                        return;
                    };
                    let is_over = !sent.is_empty() && sent.len() % PIECE == 0;
                    assert_eq!(is_over, turns.get() > before);
                    let piece = frame.unwrap().into_data().unwrap();
                    assert!(sent.len() % PIECE + piece.len() <= PIECE);
                    sent.extend_from_slice(&piece);
                }
            };
            let others = async {
                loop {
                    turns.set(turns.get() + 1);
                    yield_now().await;
                }
            };
            tokio::select! {
                biased;
                () = sends => {}
                () = others => {}
            }
            assert_eq!(sent, bytes);
        }
        // Also where nothing else wakes it.
        let alone = ResponseBody::of(bytes.clone()).collect();
        let alone = timeout(Duration::from_secs(10), alone)
            .await
            .expect("it wakes its task");
        assert_eq!(alone.unwrap().to_bytes(), bytes);
    }
}
