//! The address of a request: the URI that the client has sent, and the host.

use std::any::{TypeId, type_name};

use axum::extract::OriginalUri;
use http::header::HOST;
use http::request::Parts;
use http::{HeaderValue, Uri};

use crate::settings::Settings;

/// The URIs that count. A router may have removed a prefix from the request's URI; axum keeps the original URI in an
/// extension. Both count: requests that differ in one of them are different requests.
pub(super) fn uris(parts: &Parts, settings: &Settings) -> Vec<Uri> {
    if let Some(uri) = &settings.uri {
        return vec![uri(parts)];
    }
    let original = parts.extensions.get::<OriginalUri>();
    let original = original.map_or(&parts.uri, |original| &original.0);
    let mut uris = vec![original.clone()];
    if parts.uri.path_and_query() != original.path_and_query() {
        uris.push(parts.uri.clone());
    }
    uris
}

/// The host of the request, in lower case, with the port if the client has sent one. The authority of the URI
/// (HTTP/2's `:authority`, or a URI in absolute form) comes before the header Host (RFC 9112, section 3.2.2; RFC 9113,
/// section 8.3.1).
pub(super) fn host(parts: &Parts, uris: &[Uri]) -> Vec<u8> {
    let authority = uris.iter().find_map(|uri| uri.authority());
    let mut host = if let Some(authority) = authority {
        // The authority may have a user name, which is not a part of the host.
        let port = authority.port();
        let port = port.map_or(String::new(), |port| format!(":{port}"));
        format!("{}{port}", authority.host()).into_bytes()
    } else {
        // A request has one Host header. If it has several, all count.
        let fields = parts.headers.get_all(HOST).iter();
        let fields: Vec<&[u8]> = fields.map(HeaderValue::as_bytes).collect();
        fields.join(&b","[..])
    };
    host.make_ascii_lowercase();
    host
}

/// Whether bodies of type `B` come from another version of axum. Its [`OriginalUri`] is another type, so the layer
/// cannot find the original URI. Where a router removes a prefix, one tenant's request would look like another
/// tenant's.
pub(crate) fn hides_uri<B: 'static>() -> bool {
    // The name of a type is not stable. It decides only whether the layer refuses requests.
    let is_of_axum = type_name::<B>().starts_with("axum_core::");
    is_of_axum && TypeId::of::<B>() != TypeId::of::<axum::body::Body>()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The host of a request to `uri` with these Host headers.
    fn host_of(uri: &str, fields: &[&str]) -> String {
        let mut request = http::Request::builder().uri(uri);
        for field in fields {
            request = request.header(HOST, *field);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        let uris = [Uri::from_static("/"), parts.uri.clone()];
        String::from_utf8(host(&parts, &uris)).unwrap()
    }

    #[test]
    fn the_host_is_that_of_the_uri_or_else_the_field_in_lower_case() {
        for (uri, fields, host) in [
            ("/pay", &["Shop.example:8080"][..], "shop.example:8080"),
            ("/pay", &[], ""),
            ("/pay", &["a", "b"], "a,b"),
            // HTTP/2, and the absolute form of HTTP/1.1.
            ("https://Shop.example/pay", &[], "shop.example"),
            ("http://me@shop.example:81/pay", &["b"], "shop.example:81"),
        ] {
            assert_eq!(host_of(uri, fields), host, "{uri} {fields:?}");
        }
    }
}
