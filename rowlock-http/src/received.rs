//! A request, as the hooks of a layer see it.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use serde_json::Value;

use crate::fingerprint::json::{Choice, parse};

/// A request whose whole body has arrived, for [`key_from`](crate::IdempotencyLayer::key_from) and
/// [`fingerprint`](crate::IdempotencyLayer::fingerprint). Cloning is cheap.
#[derive(Clone)]
pub struct Received {
    head: Arc<Parts>,
    body: Bytes,
}

impl Received {
    pub(crate) fn new(head: Parts, body: Bytes) -> Self {
        Self {
            head: Arc::new(head),
            body,
        }
    }

    /// The head: the method, the URI, the headers and the extensions.
    #[must_use]
    pub fn head(&self) -> &Parts {
        &self.head
    }

    /// The body: at most [`max_body`](crate::IdempotencyLayer::max_body) bytes.
    #[must_use]
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// The head and the body, for the handler.
    pub(crate) fn into_parts(self) -> (Parts, Bytes) {
        (Arc::unwrap_or_clone(self.head), self.body)
    }
}

/// Prints the method, the path, and the length of the body. The rest may be confidential.
impl fmt::Debug for Received {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Received")
            .field("method", &self.head.method)
            .field("path", &self.head.uri.path())
            .field("bytes", &self.body.len())
            .finish_non_exhaustive()
    }
}

/// So many bytes are read in the time in which other tasks may wait.
const SHORT: usize = 16 << 10;

/// Reads a body, on a thread on which no task waits if that may take long. `None`: `read` has panicked, or the runtime
/// ends.
pub(crate) async fn read<T: Send + 'static>(
    body: &Bytes,
    read: impl FnOnce(&[u8]) -> T + Send + 'static,
) -> Option<T> {
    if body.len() <= SHORT {
        return Some(read(body));
    }
    let body = body.clone();
    tokio::task::spawn_blocking(move || read(&body)).await.ok()
}

/// What a hook returns, or why the request is refused.
type Found<T> = Pin<Box<dyn Future<Output = Result<T, String>> + Send>>;

/// A function of the application's, over a whole request.
pub(crate) type Hook<T> = dyn Fn(Received) -> Found<T> + Send + Sync;

/// The most characters of a hook's reason that a client is told.
const LONGEST_REASON: usize = 300;

pub(crate) fn hook<T, F, E>(hook: impl Fn(Received) -> F + Send + Sync + 'static) -> Arc<Hook<T>>
where
    F: Future<Output = Result<T, E>> + Send + 'static,
    E: fmt::Display,
{
    Arc::new(move |received| {
        let found = hook(received);
        Box::pin(async move {
            let shortened = |error: E| error.to_string().chars().take(LONGEST_REASON).collect();
            found.await.map_err(shortened)
        })
    })
}

/// The text or the whole number that `at` selects in a JSON body. `None`: the body has none.
pub(crate) fn text_at(json: &[u8], at: &Choice) -> Result<Option<String>, String> {
    let body = parse(json).map_err(|error| format!("The body is not JSON: {error}."))?;
    let chosen = at.select(json, &body).ok_or(
        "The key is ambiguous: an object in the body has the same field twice. Or the body is nested too deeply.",
    )?;
    let several = || format!("{at} of the body must be one value.");
    let mut selected = chosen.values.into_iter();
    let text = match selected.next() {
        None => return Ok(None),
        Some(Value::Null) if selected.len() == 0 => return Ok(None),
        Some(Value::Null) => return Err(several()),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Number(number)) if number.is_i64() || number.is_u64() => number.to_string(),
        Some(_) => {
            return Err(format!(
                "{at} of the body must be a text or a whole number."
            ));
        }
    };
    match selected.next() {
        None => Ok(Some(text)),
        Some(_) => Err(several()),
    }
}
