//! The client's side: a middleware of [`reqwest_middleware`] (0.5, for reqwest 0.13) that gives each request a key,
//! and sends the request again, with the same key, until it has its response, or a limit is reached.
//!
//! ```
//! # async fn f() -> Result<(), Box<dyn std::error::Error>> {
//! use rowlock_http::client::IdempotentRetries;
//!
//! let client = reqwest_middleware::ClientBuilder::new(reqwest::Client::new())
//!     .with(IdempotentRetries::new())
//!     .build();
//! // However often the middleware sends it, it takes effect once.
//! let paid = client.post("https://shop.example/payments").body("500").send().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # What is sent again
//!
//! | after | |
//! | --- | --- |
//! | no response: no connection, a time limit, a broken connection | sent again: the server may have done the work, and the key keeps it from doing it twice |
//! | 409 with `Retry-After` | sent again: the first request is still running ([draft 07](https://datatracker.ietf.org/doc/html/draft-ietf-httpapi-idempotency-key-header-07), section 2.6) |
//! | 400 with `Retry-After` | sent again: the server did not get the whole body ([body-unreadable](crate#body-unreadable)) |
//! | 408, 425, 429, 500, 502, 503, 504 | sent again |
//! | 409 without `Retry-After` | the response: somebody has to decide. ([`retry_conflicts`](IdempotentRetries::retry_conflicts) is for servers that never say when to come back.) |
//! | 422 | the response, always: the key was used for another request |
//! | any response with `Idempotent-Replayed: true` (or `?1`) | the response: the server keeps it, and sends it again each time |
//! | everything else | the response |
//!
//! Before each further sending the middleware waits for `Retry-After` (seconds, or a date by the response's `Date`),
//! or for 100 ms, doubled each time up to 10 s, whichever is longer. It adds up to half of that at random, as far as
//! [`give_up_after`](IdempotentRetries::give_up_after) lets it, so that clients that failed together do not return
//! together. After the last sending the caller gets its response, or its error.
//!
//! A request whose body is a stream is sent once, with a key: a stream cannot be read again.

use std::time::Duration;

use async_trait::async_trait;
use backon::{BackoffBuilder as _, ExponentialBuilder};
use http::header::{DATE, RETRY_AFTER};
use http::{Extensions, HeaderValue, Method, StatusCode};
use reqwest::{Request, Response};
use reqwest_middleware::{Error, Middleware, Next, Result};
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use crate::key::IDEMPOTENCY_KEY;
use crate::stored::REPLAYED;

const TRIES: u32 = 10;
const GIVE_UP_AFTER: Duration = Duration::from_mins(1);
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// A server may tell any time. Of this much, up to half is added.
const LONGEST_EXTRA: Duration = Duration::from_hours(1);

/// A middleware that gives requests a key, and sends them again; see [the module](self).
///
/// A request that has the header `Idempotency-Key` already keeps it. **Set the header where the application itself
/// sends a request again**: after an error or a 409 that this middleware has returned, after a body that broke off,
/// after a restart. A key that the application has stored is the same then; a key that the middleware makes is new for
/// each call, and a new key is a new payment. (The key stands in the call's `Extensions`, so that a middleware around
/// this one sends the same key when it sends the request again. So do not use one value of `execute_with_extensions`
/// for two calls.)
///
/// # Cancel safety
///
/// Dropping the future stops the sending. The server may have done the work.
#[derive(Debug, Clone)]
#[must_use = "it does nothing by itself"]
pub struct IdempotentRetries {
    methods: Vec<Method>,
    tries: u32,
    give_up_after: Duration,
    retry_conflicts: bool,
}

impl Default for IdempotentRetries {
    fn default() -> Self {
        Self {
            methods: vec![Method::POST, Method::PATCH],
            tries: TRIES,
            give_up_after: GIVE_UP_AFTER,
            retry_conflicts: false,
        }
    }
}

impl IdempotentRetries {
    /// With the settings below as they are.
    pub fn new() -> Self {
        Self::default()
    }

    /// The methods whose requests get a key and are sent again (default: POST and PATCH). Other requests pass
    /// untouched.
    pub fn methods(mut self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.methods = methods.into_iter().collect();
        self
    }

    /// How often a request is sent at most (default: 10; at least once). A request that is [in
    /// flight](crate#in-flight) does not count: it is sent again until [`give_up_after`](Self::give_up_after).
    pub fn tries(mut self, tries: u32) -> Self {
        self.tries = tries.max(1);
        self
    }

    /// After this time a request is not sent again (default: 1 min). It bounds the time from the first sending to the
    /// last, not the request itself: set a time limit in reqwest. Keep it well below the time for which the server
    /// remembers a key.
    pub fn give_up_after(mut self, time: Duration) -> Self {
        self.give_up_after = time;
        self
    }

    /// Whether a 409 without `Retry-After` is sent again (default: no). For servers that answer so while the first
    /// request runs, and never otherwise.
    pub fn retry_conflicts(mut self, yes: bool) -> Self {
        self.retry_conflicts = yes;
        self
    }

    /// How long the server says to wait before the request is sent again. `None`: it is not sent again.
    fn again(&self, sent: &Result<Response>) -> Option<Duration> {
        let response = match sent {
            Ok(response) => response,
            Err(error) => return may_have_arrived(error).then_some(Duration::ZERO),
        };
        // What is kept does not change.
        let replayed = response.headers().get(REPLAYED);
        if replayed
            .is_some_and(|said| said == "?1" || said.as_bytes().eq_ignore_ascii_case(b"true"))
        {
            return None;
        }
        let told = retry_after(response);
        let again = match response.status() {
            StatusCode::BAD_REQUEST => told.is_some(),
            StatusCode::CONFLICT => told.is_some() || self.retry_conflicts,
            StatusCode::REQUEST_TIMEOUT
            | StatusCode::TOO_EARLY
            | StatusCode::TOO_MANY_REQUESTS
            | StatusCode::INTERNAL_SERVER_ERROR
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT => true,
            _ => false,
        };
        again.then(|| told.unwrap_or_default())
    }
}

/// The key that was made for a request.
#[derive(Debug, Clone)]
struct MadeKey(HeaderValue);

impl MadeKey {
    fn new() -> Result<Self> {
        let key = HeaderValue::from_str(&format!("\"{}\"", Uuid::new_v4()));
        key.map(Self).map_err(Error::middleware)
    }
}

#[async_trait]
impl Middleware for IdempotentRetries {
    async fn handle(
        &self,
        mut request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> Result<Response> {
        if !self.methods.contains(request.method()) {
            return next.run(request, extensions).await;
        }
        if !request.headers().contains_key(&IDEMPOTENCY_KEY) {
            // A middleware around this one may send the request again, too.
            let made = extensions.get::<MadeKey>().cloned();
            let made = made.map_or_else(MadeKey::new, Ok)?;
            request
                .headers_mut()
                .insert(IDEMPOTENCY_KEY, made.0.clone());
            extensions.insert(made);
        }
        let began = Instant::now();
        let mut pauses = pauses();
        let mut tries = 0;
        while let Some(copy) = request.try_clone() {
            let sent = next.clone().run(copy, extensions).await;
            let Some(told) = self.again(&sent) else {
                return sent;
            };
            tries += u32::from(!is_in_flight(&sent));
            let left = self.give_up_after.saturating_sub(began.elapsed());
            if tries >= self.tries {
                return sent;
            }
            let least = told.max(pauses.next().unwrap_or(LONGEST_PAUSE));
            let Some(pause) = pause(least, left) else {
                return sent;
            };
            match &sent {
                Ok(response) => {
                    let status = response.status().as_u16();
                    tracing::debug!(status, tries, ?pause, "a request is sent again");
                }
                Err(error) => tracing::debug!(%error, tries, ?pause, "a request is sent again"),
            }
            // The connection is free for the next sending.
            drop(sent);
            sleep(pause).await;
        }
        next.run(request, extensions).await
    }
}

/// Whether the first request still runs.
fn is_in_flight(sent: &Result<Response>) -> bool {
    let status = sent.as_ref().map(Response::status);
    matches!(status, Ok(StatusCode::CONFLICT))
}

/// Up to half more than `least`, at random, and no more than is `left`. `None`: even `least` is more.
fn pause(least: Duration, left: Duration) -> Option<Duration> {
    let more = || least.min(LONGEST_EXTRA).mul_f64(fastrand::f64() / 2.0);
    (least <= left).then(|| least.saturating_add(more()).min(left))
}

fn pauses() -> impl Iterator<Item = Duration> {
    ExponentialBuilder::new()
        .with_min_delay(SHORTEST_PAUSE)
        .with_max_delay(LONGEST_PAUSE)
        .without_max_times()
        .build()
}

/// Whether another sending may have a response.
fn may_have_arrived(error: &Error) -> bool {
    let Error::Reqwest(error) = error else {
        return false;
    };
    error.is_timeout() || error.is_connect() || error.is_request()
}

/// The time of the header `Retry-After` (RFC 9110, section 10.2.3), from now. A value that cannot be read says no
/// time, and still asks for another sending.
fn retry_after(response: &Response) -> Option<Duration> {
    let text = |name| response.headers().get(name)?.to_str().ok();
    let told = response.headers().get(RETRY_AFTER)?;
    let told = told.to_str().unwrap_or_default().trim();
    // Some servers send fractions, or more than any number of seconds has room for.
    if let Ok(seconds) = told.parse::<f64>() {
        let most = if seconds > 0.0 {
            Duration::MAX
        } else {
            Duration::ZERO
        };
        return Some(Duration::try_from_secs_f64(seconds).unwrap_or(most));
    }
    let Ok(at) = httpdate::parse_http_date(told) else {
        return Some(Duration::ZERO);
    };
    // The clock of this machine may differ from that of the server.
    let date = text(DATE).and_then(|date| httpdate::parse_http_date(date).ok());
    #[allow(
        clippy::disallowed_methods,
        reason = "the server tells a date, and not when"
    )]
    let now = date.unwrap_or_else(std::time::SystemTime::now);
    Some(at.duration_since(now).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_server_says_is_waited_for_if_there_is_time() {
        let [least, left] = [45, 60].map(Duration::from_secs);
        for _ in 0..1_000 {
            let pause = pause(least, left).expect("there is time");
            assert!(pause >= least && pause <= left, "{pause:?}");
        }
        assert_eq!(pause(left, left), Some(left));
        assert_eq!(pause(Duration::MAX, left), None);
        assert_eq!(pause(Duration::MAX, Duration::MAX), Some(Duration::MAX));
    }
}
