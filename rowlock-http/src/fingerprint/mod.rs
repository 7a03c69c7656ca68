//! The fingerprint of a request: its method, path, query and body, and what else counts by the settings.
//!
//! A setting adds nothing where a request has nothing of it: a deployment that changes the setting does not refuse
//! that request's retries.
//!
//! - [`uri`]: the path and query that the client has sent, and the host.
//! - [`json`]: the parts of a JSON body that count.
//! - [`path`]: how many steps a path takes in a body.
//! - [`multipart`]: a form counts by its parts.

pub(crate) mod json;
mod multipart;
mod path;
mod unambiguous;
mod uri;

use http::header::CONTENT_TYPE;
use http::request::Parts;
use rowlock::{Fingerprint, FingerprintBuilder};
pub(crate) use uri::hides_uri;

use crate::collect::Collected;
use crate::problem::Problem;
use crate::received::{self, Received};
use crate::settings::Settings;

pub(crate) async fn of(
    received: &Received,
    body: &Collected,
    settings: &Settings,
) -> Result<Fingerprint, Problem> {
    let head = received.head();
    let mut request = Fingerprint::builder().part(head.method.as_str());
    let uris = uri::uris(head, settings);
    for (number, uri) in uris.iter().enumerate() {
        if number > 0 {
            request = request.part("inside");
        }
        request = request
            .part(uri.path())
            .part(uri.query().unwrap_or_default());
    }
    if settings.host_counts {
        let host = uri::host(head, &uris);
        if !host.is_empty() {
            request = request.part("host").part(host);
        }
    }
    for name in settings.headers_count.iter().flatten() {
        // (A handler may read it where it comes: RFC 9110, 6.5.)
        let trailers = body.trailers.as_ref();
        for (kind, map) in [("header", Some(&head.headers)), ("trailer", trailers)] {
            let values: Vec<_> = map.into_iter().flat_map(|map| map.get_all(name)).collect();
            if values.is_empty() {
                continue;
            }
            request = request.part(kind).part(name.as_str());
            request = request.part((values.len() as u64).to_be_bytes());
            for value in values {
                request = request.part(value.as_bytes());
            }
        }
    }
    let request = match &settings.fingerprint {
        Some(hook) => {
            let of_hook = hook(received.clone()).await;
            let of_hook = of_hook.map_err(Problem::RequestRefused)?;
            request.part("hook").part(of_hook.as_bytes())
        }
        None => of_body(request, received, body, settings).await,
    };
    Ok(request.finish())
}

async fn of_body(
    request: FingerprintBuilder,
    received: &Received,
    body: &Collected,
    settings: &Settings,
) -> FingerprintBuilder {
    if let Ok(Some(choice)) = &settings.json
        && is_json(received.head())
    {
        let (choice, request) = (choice.clone(), request.clone().part("json"));
        let chosen = move |json: &[u8]| request.json(choice.chosen(json)?).ok();
        if let Some(Some(request)) = received::read(&body.bytes, chosen).await {
            return request;
        }
    }
    if let Some(digest) = multipart::digest(received.head(), &body.bytes).await {
        return request.part("multipart").part(digest.as_bytes());
    }
    request.part("bytes").pieces(body.digest.clone())
}

fn is_json(head: &Parts) -> bool {
    let value = head.headers.get(CONTENT_TYPE);
    let Some(text) = value.and_then(|value| value.to_str().ok()) else {
        return false;
    };
    let essence = text.split(';').next().unwrap_or_default().trim();
    let essence = essence.to_ascii_lowercase();
    essence == "application/json" || essence.ends_with("+json")
}

#[cfg(all(test, feature = "sqlite"))]
mod tests;
