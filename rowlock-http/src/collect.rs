//! Reading the body of a request.

use std::error::Error as StdError;
use std::pin::pin;

use bytes::{Buf, Bytes};
use http_body::Body;
use http_body_util::{BodyExt, LengthLimitError};
use rowlock::FingerprintPieces;

use crate::body::BoxError;
use crate::problem::Problem;

/// A whole body.
#[derive(Debug)]
pub(crate) struct Collected {
    pub(crate) bytes: Bytes,
    pub(crate) digest: FingerprintPieces,
}

/// Reads the body, and computes its digest on the way.
pub(crate) async fn collect<B>(body: B, limit: usize) -> Result<Collected, Problem>
where
    B: Body,
    B::Error: Into<BoxError>,
{
    let too_large = |bytes: u64| bytes > limit as u64;
    if too_large(body.size_hint().lower()) {
        return Err(Problem::BodyTooLarge { limit });
    }
    let mut body = pin!(body);
    let (mut chunks, mut length) = (Vec::<Bytes>::new(), 0_u64);
    let mut digest = FingerprintPieces::default();
    loop {
        // Frames may come without a pause. This lets other tasks run, and the time limit end the reading.
        tokio::task::consume_budget().await;
        let Some(frame) = body.frame().await else {
            break;
        };
        let frame = frame.map_err(|error| broken(error.into().as_ref(), limit))?;
        let Some(mut data) = frame.into_data().ok().filter(Buf::has_remaining) else {
            continue;
        };
        length += data.remaining() as u64;
        if too_large(length) {
            return Err(Problem::BodyTooLarge { limit });
        }
        let chunk = data.copy_to_bytes(data.remaining());
        digest.add(&chunk);
        chunks.push(chunk);
    }
    let bytes = match chunks.len() {
        1 => chunks.swap_remove(0),
        _ => chunks.concat().into(),
    };
    Ok(Collected { bytes, digest })
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
