//! Attempts at the keys of one scope, and a payment provider that an attempt calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rowlock::{
    Begun, Error, Fingerprint, Idempotency, IdempotencyGuard, Outcome, Scope, StepFailed,
};

pub fn request() -> Fingerprint {
    Fingerprint::of("request")
}

pub fn outcome(text: &str) -> Outcome {
    Outcome::new("text/plain", text).unwrap()
}

/// Begins the [`request`] under a key of the scope `scope`.
pub async fn begin(idempotency: &Idempotency, key: &str) -> Begun<IdempotencyGuard> {
    idempotency
        .begin(Scope("scope").key(key), request())
        .await
        .unwrap()
}

/// Begins, and panics unless this begins a new attempt.
pub async fn begin_new(idempotency: &Idempotency, key: &str) -> IdempotencyGuard {
    match begin(idempotency, key).await {
        Begun::New(guard) => guard,
        other => panic!("not new: {other:?}"),
    }
}

/// Waits until the attempt of an abandoned caller ends, and takes over.
pub async fn take_over(idempotency: &Idempotency, key: &str) -> IdempotencyGuard {
    begin_new(&idempotency.clone().wait(Duration::from_secs(30)), key).await
}

/// A provider that counts its charges.
#[derive(Debug, Default, Clone)]
pub struct Provider(Arc<AtomicU32>);

impl Provider {
    pub fn charges(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }

    pub fn set_charges(&self, charges: u32) {
        self.0.store(charges, Ordering::SeqCst);
    }

    pub async fn charge(&self) -> Result<u32, Error> {
        let charges = self.0.fetch_add(1, Ordering::SeqCst) + 1;
        tokio::task::yield_now().await;
        Ok(charges)
    }

    pub async fn charge_once(&self) -> Result<u32, StepFailed<Error>> {
        Ok(self.charge().await?)
    }
}
