//! Reading the body of a request.

use std::any::Any;
use std::error::Error as StdError;
use std::future::ready;
use std::mem::take;
use std::pin::Pin;
use std::time::Duration;

use bytes::{Buf, Bytes};
use http::HeaderMap;
use http::header::EXPECT;
use http_body::Body;
use http_body_util::{BodyExt, Full, LengthLimitError};
use rowlock::FingerprintPieces;
use tokio::time::timeout;

use crate::body::BoxError;
use crate::problem::Problem;

/// How much of a body is read, and for how long, before its request is refused.
const READ_ON: u64 = 16 << 20;
const READ_ON_FOR: Duration = Duration::from_secs(10);

/// A whole body.
#[derive(Debug)]
pub(crate) struct Collected {
    pub(crate) bytes: Bytes,
    pub(crate) trailers: Option<HeaderMap>,
    pub(crate) digest: FingerprintPieces,
}

/// Reads the body, and computes its digest on the way.
pub(crate) async fn collect<B>(mut body: Pin<&mut B>, limit: usize) -> Result<Collected, Problem>
where
    B: Body,
    B::Error: Into<BoxError>,
{
    let too_large = |bytes: u64| bytes > limit as u64;
    if too_large(body.size_hint().lower()) {
        return Err(Problem::BodyTooLarge { limit });
    }
    // A frame that is alone is not copied. Several are, each as it comes: many small ones would take more room than
    // the body, and keep the buffers from which they were read.
    let (mut alone, mut all, mut length) = (Bytes::new(), Vec::new(), 0_u64);
    let (mut digest, mut trailers) = (FingerprintPieces::default(), None);
    loop {
        // Frames may come without a pause. This lets other tasks run, and the time limit end the reading.
        tokio::task::consume_budget().await;
        let Some(frame) = body.frame().await else {
            break;
        };
        let frame = frame.map_err(|error| broken(error.into().as_ref(), limit))?;
        let mut data = match frame.into_data() {
            Ok(data) if data.has_remaining() => data,
            Ok(_) => continue,
            Err(frame) => {
                trailers = frame.into_trailers().ok();
                continue;
            }
        };
        length += data.remaining() as u64;
        if too_large(length) {
            return Err(Problem::BodyTooLarge { limit });
        }
        let chunk = data.copy_to_bytes(data.remaining());
        digest.add(&chunk);
        if length == chunk.len() as u64 {
            alone = chunk;
        } else {
            all.extend_from_slice(&take(&mut alone));
            all.extend_from_slice(&chunk);
        }
    }
    let bytes = if all.is_empty() { alone } else { all.into() };
    Ok(Collected {
        bytes,
        trailers,
        digest,
    })
}

/// A body that has been read, for the handler. axum's body has room for trailers; whether another type has is not
/// known.
pub(crate) fn again<B>(bytes: Bytes, trailers: Option<HeaderMap>) -> B
where
    B: From<Bytes> + 'static,
{
    let Some(trailers) = trailers else {
        return B::from(bytes);
    };
    let whole = Full::from(bytes.clone()).with_trailers(ready(Some(Ok(trailers))));
    let mut whole = Some(axum::body::Body::new(whole));
    let same = (&mut whole as &mut dyn Any).downcast_mut::<Option<B>>();
    same.and_then(Option::take).unwrap_or_else(|| bytes.into())
}

/// Reads on before a refusal, within bounds. Many clients write their whole body before they read anything, and a
/// server closes the connection of a body that it has not read: they would see a broken pipe, and send the request
/// again.
pub(crate) async fn discard<B: Body>(headers: &HeaderMap, mut body: Pin<&mut B>) {
    // Such a client waits for an answer before it sends its body.
    let waits = headers.contains_key(EXPECT);
    if waits || body.size_hint().lower() > READ_ON {
        return;
    }
    let mut length = 0;
    let reading = async {
        while length <= READ_ON {
            tokio::task::consume_budget().await;
            let Some(Ok(frame)) = body.frame().await else {
                break;
            };
            length += frame.data_ref().map_or(0, |data| data.remaining() as u64);
        }
    };
    // The refusal counts, whether or not the body comes to its end.
    let _ = timeout(READ_ON_FOR, reading).await;
}

/// The problem of a body that failed. A limit outside of this layer may have failed it, because it is too large.
fn broken(error: &(dyn StdError + 'static), limit: usize) -> Problem {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if error.is::<LengthLimitError>() {
            return Problem::BodyTooLarge { limit };
        }
        cause = error.source();
    }
    Problem::BodyUnreadable
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::pin::pin;
    use std::sync::Arc;

    use futures_util::{StreamExt as _, stream};
    use http_body::Frame;
    use http_body_util::StreamBody;
    use tokio::time::Instant;

    use super::*;

    /// One byte, and the buffer from which it was read.
    struct Read(#[allow(dead_code, reason = "it counts")] Arc<()>);

    impl AsRef<[u8]> for Read {
        fn as_ref(&self) -> &[u8] {
            b"x"
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_does_not_wait_for_the_end_of_a_body() {
        let start = stream::iter([Ok::<_, Infallible>(Frame::data(Bytes::from_static(b"x")))]);
        let silent = pin!(StreamBody::new(start.chain(stream::pending())));
        let began = Instant::now();
        discard(&HeaderMap::new(), silent).await;
        assert_eq!(began.elapsed(), READ_ON_FOR);
    }

    #[tokio::test]
    async fn the_buffers_of_small_frames_are_let_go() {
        let buffers = Arc::new(());
        let frames = (0..1_000).map(|_| {
            assert!(Arc::strong_count(&buffers) <= 3, "they are kept");
            let bytes = Bytes::from_owner(Read(Arc::clone(&buffers)));
            Ok::<_, Infallible>(Frame::data(bytes))
        });
        let body = pin!(StreamBody::new(stream::iter(frames)));
        let collected = collect(body, 1_000).await.unwrap();
        assert_eq!(collected.bytes, vec![b'x'; 1_000]);
    }
}
