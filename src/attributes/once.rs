//! Work that happens once for a key, in one call: begin, work, complete.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Refused;
use super::keep::{give_up, is_not_kept, keep, to_keep};
use crate::idempotency::{Begun, Idempotency, IdempotencyGuard, LayerAttempt};
use crate::model::{Error, Fingerprint, Key};

/// Runs `work` once for `key` in `scope`, and keeps its result as JSON. A later call of the same request gets that
/// result, and does not run `work`. The attribute
/// [`idempotent`](https://docs.rs/rowlock/latest/rowlock/attr.idempotent.html) does this to a whole function.
///
/// `fingerprint` is the digest of the request; [`Call`](super::Call) makes one of a function and its arguments.
///
/// # How the attempt ends
///
/// - `work` returns `Ok`: the result is kept, and then returned. If `work` has completed the attempt itself, with
///   [`complete_in`](IdempotencyGuard::complete_in) in its transaction and the *same* value as JSON
///   ([`Outcome::json`](crate::Outcome::json)), the result and the writes of that transaction are one commit.
/// - `work` returns `Err`: the key is free, and the next call runs the work again. So return a final failure (a
///   declined card) as a value, not as an error. During a [step that must not be
///   repeated](IdempotencyGuard::step_once) the record becomes unknown instead. If `work` has called
///   [`keep_claimed`](IdempotencyGuard::keep_claimed), the key stays claimed until the lease ends.
/// - The result cannot be kept (it is larger than [`max_outcome`](Idempotency::max_outcome), or JSON cannot represent
///   it): the work is done and must not be repeated, so this call returns the result, and later calls get
///   [`Refused::NotKept`].
/// - The database does not answer: this call returns the error, and a task of the client keeps trying for up to ten
///   minutes. Until then the key stays claimed. Call again to get the result.
/// - The process crashes, or this future is dropped, during `work`: the attempt is abandoned. When its lease has ended
///   (after a drop: at once) the next call runs the work again. Protect effects outside of the database with
///   [steps](IdempotencyGuard::step) and the [`downstream_key`](IdempotencyGuard::downstream_key).
///
/// The key is remembered for [`retention`](Idempotency::retention) and
/// [`remember_expired`](Idempotency::remember_expired), 7 days when not set, from the end of the attempt. After that,
/// the same call runs the work again.
///
/// If the lease of the attempt is lost, because the process was paused or the database did not answer for the time of
/// the lease, `work` goes on, because its effect may be under way, and another attempt may begin meanwhile. If another
/// attempt has taken over by the end of `work`, the result is not kept, and the error is [`Error::Superseded`].
///
/// # Errors
///
/// The errors of `work`. [`Refused`], when the work did not run and there is no result. The errors of
/// [`Idempotency::begin`] and [`IdempotencyGuard::complete`]; [`RecordError::Json`](crate::RecordError::Json) when the
/// kept result does not represent a `T`.
///
/// # Panics
///
/// Outside of a tokio runtime with timers (`enable_time`).
///
/// # Cancel safety
///
/// Dropping the future during `work` ends the attempt as a crash does, except that the key is free at once. After
/// `work`, the result is kept in the background.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let url = format!("sqlite:{}/shop.db?mode=rwc", dir.path().display());
/// # let rowlock = rowlock::Rowlock::connect(&url).await?;
/// use rowlock::attributes::{Call, once};
///
/// type Failed = Box<dyn std::error::Error>;
/// let idempotency = rowlock.idempotency();
/// let key = rowlock::Scope("customer:7").key("order-4711");
/// for _ in 0..2 {
///     let call = Call::of("pay").argument("cents", &500)?.finish();
///     let pay = async |attempt: &rowlock::IdempotencyGuard| Ok::<_, Failed>(attempt.attempt());
///     let attempt = once(&idempotency, key, call, pay).await?;
///     assert_eq!(attempt, idempotency.inspect(key).await?.unwrap().attempt);
/// }
/// # Ok(())
/// # }
/// ```
pub async fn once<T, E>(
    idempotency: &Idempotency,
    key: Key<impl AsRef<[u8]>, impl AsRef<[u8]>>,
    fingerprint: impl Into<Fingerprint>,
    work: impl AsyncFnOnce(&IdempotencyGuard) -> Result<T, E>,
) -> Result<T, E>
where
    T: Serialize + DeserializeOwned,
    E: From<Error> + From<Refused>,
{
    let record = key.record().map_err(Error::from)?;
    let refused = match idempotency.begin(key, fingerprint).await? {
        Begun::New(guard) => {
            return match work(&guard).await {
                Ok(done) if guard.has_ended() => Ok(done),
                Ok(done) => {
                    let outcome = to_keep(&guard, &done);
                    keep(idempotency, guard, outcome).await?;
                    Ok(done)
                }
                Err(error) => {
                    give_up(&guard).await;
                    Err(error)
                }
            };
        }
        Begun::Replay(outcome) if is_not_kept(&outcome) => Refused::NotKept { record },
        Begun::Replay(outcome) => return Ok(outcome.parse_json_of(record)?),
        Begun::InFlight(attempt) => Refused::InFlight { record, attempt },
        Begun::Mismatch => Refused::Mismatch { record },
        Begun::Unknown(step) => Refused::Unknown(step),
        Begun::Expired => Refused::Expired { record },
        Begun::Poisoned { attempts } => Refused::Poisoned { record, attempts },
    };
    Err(refused.into())
}
