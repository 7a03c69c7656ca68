//! Requests before and beside their handlers.

use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::body::Body as AxumBody;
use rowlock::{Fingerprint, RecordState, Rowlock};

use super::*;
use crate::settings::Principal;

#[tokio::test]
async fn a_handler_that_has_not_begun_when_handlers_are_cut_off_frees_its_key() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}/test.db?mode=rwc", dir.path().display());
    let idempotency = Rowlock::connect(&url).await.unwrap().idempotency();
    for server_error in [
        ServerError::Transient,
        ServerError::Unknown,
        ServerError::Keep,
    ] {
        let nobody = Arc::new(|_: &http::request::Parts| None);
        let mut settings = Settings::new(idempotency.clone(), Principal::Known(nobody));
        settings.server_error = server_error;
        let asked = Asked {
            settings: Arc::new(settings),
            owner: b"ann".to_vec(),
            key: None,
        };
        let settings = &asked.settings;
        let key = format!("{server_error:?}");
        let request = Fingerprint::of("request");
        let begun = idempotency.begin_http("ann", &key, request).await.unwrap();
        let Begun::New(guard) = begun else {
            panic!("it is new")
        };
        let task = settings.under_way.begin().unwrap();
        let attempt = Idempotent::new(guard, settings, &task);
        assert!(asked.found(&attempt).await.unwrap().is_none());
        let left = settings.under_way.drain(Duration::ZERO).await;
        assert_eq!(left.len(), 1);

        let has_run = Arc::new(AtomicBool::new(false));
        let runs = Arc::clone(&has_run);
        let inner = Router::new().fallback(async move || runs.store(true, Ordering::Relaxed));
        let request = Request::new(AxumBody::empty());
        let answer = asked.attempt(attempt, inner, request, &task).await.unwrap();
        assert_eq!(answer.status(), http::StatusCode::SERVICE_UNAVAILABLE);
        assert!(!has_run.load(Ordering::Relaxed));
        let record = idempotency
            .inspect(Scope(crate::scope("ann")).key(&key))
            .await;
        assert_eq!(record.unwrap().unwrap().state, RecordState::Free);
        drop(task);
        assert_eq!(settings.under_way.drain(Duration::ZERO).await, []);
    }
}

#[tokio::test]
async fn only_a_request_that_may_wait_takes_room_of_those_who_wait() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}/test.db?mode=rwc", dir.path().display());
    let idempotency = Rowlock::connect(&url).await.unwrap().idempotency();
    let nobody = || Principal::Known(Arc::new(|_: &http::request::Parts| None));
    let mut settings = Settings::new(idempotency.clone(), nobody());
    settings.max_waiting = crate::settings::Running::at_most(1);
    settings.max_wait = Some(Duration::from_secs(30));
    let plain = http::HeaderMap::new();
    let mut patient = http::HeaderMap::new();
    patient.insert("prefer", http::HeaderValue::from_static("wait=10"));
    let asked = |headers| {
        let (asked, room) = settings.idempotency_for(headers);
        (asked.waits(), room)
    };
    let none: Vec<_> = (0..3).map(|_| asked(&plain)).collect();
    assert!(none.iter().all(|(waits, room)| !waits && room.is_none()));
    let (first, second) = (asked(&patient), asked(&patient));
    assert!(first.0 && first.1.is_some());
    assert!(!second.0 && second.1.is_none(), "there is no room for it");
    drop(first);
    assert!(asked(&patient).0);
}
