//! Where a request comes from, and which host it is for.

use http::HeaderValue;
use http::header::{HOST, ORIGIN};
use http::request::Parts;
use http::uri::Authority;

/// Says where a request comes from.
const SITE: &str = "sec-fetch-site";

/// The host that the request is for.
pub(crate) fn authority(parts: &Parts) -> Option<Authority> {
    if let Some(authority) = parts.uri.authority() {
        return Some(authority.clone());
    }
    let mut hosts = parts.headers.get_all(HOST).iter();
    let host = hosts.next().filter(|_| hosts.next().is_none())?;
    Authority::try_from(host.as_bytes()).ok()
}

/// Whether a page of another site asks, for something else than a page in a window of its own: for an image, a frame,
/// or the answer to a script. All browsers say so (Fetch Metadata). Each answer would cost statements.
pub(crate) fn is_part_of_another_page(parts: &Parts) -> bool {
    let header = |name| parts.headers.get(name).map(HeaderValue::as_bytes);
    let is_foreign = matches!(header(SITE), Some(b"cross-site" | b"same-site"));
    is_foreign && header("sec-fetch-dest") != Some(b"document")
}

/// Whether a link on another site led here, as far as the browser says.
pub(crate) fn is_from_another_site(parts: &Parts) -> bool {
    let site = parts.headers.get(SITE);
    site.is_some_and(|site| matches!(site.as_bytes(), b"cross-site" | b"same-site"))
}

/// Whether a form was sent from a page of this console. A browser says where a form comes from, in one of two headers.
/// (Under this console's Referrer-Policy, `Origin` is `null` for its own forms.)
pub(crate) fn is_of_this_site(parts: &Parts) -> bool {
    if let Some(site) = parts.headers.get(SITE) {
        return site.as_bytes() == b"same-origin";
    }
    let Some(origin) = parts.headers.get(ORIGIN) else {
        return true;
    };
    let origin = origin.to_str().unwrap_or_default();
    let of = origin.split_once("://").map(|(_, authority)| authority);
    let host = authority(parts);
    origin == "null" || of.is_some_and(|of| host.is_some_and(|host| host.as_str() == of))
}
