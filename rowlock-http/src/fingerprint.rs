//! The fingerprint of a request: its method, path, query and body, and its host if the settings say so.

use std::any::{TypeId, type_name};
use std::error::Error as StdError;
use std::fmt::Write as _;
use std::pin::pin;

use axum::extract::OriginalUri;
use bytes::{Buf, Bytes};
use http::header::{CONTENT_TYPE, HOST};
use http::request::Parts;
use http::{HeaderValue, Uri};
use http_body::Body;
use http_body_util::{BodyExt, LengthLimitError};
use rowlock::{Fingerprint, FingerprintPieces};
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::body::BoxError;
use crate::problem::Problem;
use crate::settings::Settings;

/// If JSON is nested deeper, all bytes of the body count: the code parses a value again at each level.
const MAX_DEPTH: usize = 32;

/// A whole body.
#[derive(Debug)]
pub(crate) struct Collected {
    pub(crate) bytes: Bytes,
    digest: FingerprintPieces,
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

pub(crate) fn of(parts: &Parts, body: &Collected, settings: &Settings) -> Fingerprint {
    let fields = &settings.json_fields;
    let mut request = Fingerprint::builder().part(parts.method.as_str());
    let uris = uris(parts, settings);
    for uri in &uris {
        request = request
            .part(uri.path())
            .part(uri.query().unwrap_or_default());
    }
    if settings.host_counts {
        request = request.part("host").part(host(parts, &uris));
    }
    let chosen = if fields.is_empty() || !is_json(parts) {
        None
    } else {
        chosen(&body.bytes, fields)
    };
    match chosen {
        Some(chosen) => request.part("fields").part(chosen),
        None => request.part("bytes").pieces(body.digest.clone()),
    }
    .finish()
}

/// The URIs that count. A router may have removed a prefix from the request's URI; axum keeps the original URI in an extension.
/// Both count: requests that differ in one of them are different requests.
fn uris(parts: &Parts, settings: &Settings) -> Vec<Uri> {
    if let Some(uri) = &settings.uri {
        return vec![uri(parts)];
    }
    let original = parts.extensions.get::<OriginalUri>();
    let original = original.map_or(&parts.uri, |original| &original.0);
    vec![original.clone(), parts.uri.clone()]
}

/// The host of the request, in lower case, with the port if the client has sent one. The authority of the URI (HTTP/2's
/// `:authority`, or a URI in absolute form) comes before the header Host (RFC 9112, section 3.2.2; RFC 9113, section 8.3.1).
fn host(parts: &Parts, uris: &[Uri]) -> Vec<u8> {
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

/// Whether bodies of type `B` come from another version of axum. Its [`OriginalUri`] is another type, so the layer cannot find
/// the original URI. Where a router removes a prefix, one tenant's request would look like another tenant's.
pub(crate) fn hides_uri<B: 'static>() -> bool {
    // The name of a type is not stable. It decides only whether the layer refuses requests.
    let is_of_axum = type_name::<B>().starts_with("axum_core::");
    is_of_axum && TypeId::of::<B>() != TypeId::of::<axum::body::Body>()
}

fn is_json(parts: &Parts) -> bool {
    let value = parts.headers.get(CONTENT_TYPE);
    let Some(text) = value.and_then(|value| value.to_str().ok()) else {
        return false;
    };
    let essence = text.split(';').next().unwrap_or_default().trim();
    let essence = essence.to_ascii_lowercase();
    essence == "application/json" || essence.ends_with("+json")
}

/// The chosen fields of an object, in the order of the settings. `None`: the JSON is not an object.
fn chosen(json: &[u8], fields: &[String]) -> Option<String> {
    let object: Object<'_> = serde_json::from_slice(json).ok()?;
    let mut text = String::new();
    for field in fields {
        let values = object.0.iter().filter(|(name, _)| name == field);
        for (name, value) in values {
            let _ = write!(text, "{}:", serde_json::Value::from(&**name));
            write_canonical(value, &mut text, 0)?;
            text.push(',');
        }
    }
    Some(text)
}

/// An object with its fields in their order. A field that occurs twice stays twice.
struct Object<'a>(Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Object<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;

        impl<'de> Visitor<'de> for Fields {
            type Value = Object<'de>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object<'de>, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(Object(fields))
            }
        }

        deserializer.deserialize_map(Fields)
    }
}

/// Writes a value without white space, and with sorted fields. A number keeps its text: as floats, two different numbers could
/// become equal.
fn write_canonical(value: &RawValue, text: &mut String, depth: usize) -> Option<()> {
    if depth > MAX_DEPTH {
        return None;
    }
    let raw = value.get();
    match raw.as_bytes().first()? {
        b'{' => {
            let mut object: Object<'_> = serde_json::from_str(raw).ok()?;
            object.0.sort_by(|(one, _), (other, _)| one.cmp(other));
            text.push('{');
            for (name, value) in object.0 {
                let _ = write!(text, "{}:", serde_json::Value::from(name));
                write_canonical(value, text, depth + 1)?;
                text.push(',');
            }
            text.push('}');
        }
        b'[' => {
            let values: Vec<&RawValue> = serde_json::from_str(raw).ok()?;
            text.push('[');
            for value in values {
                write_canonical(value, text, depth + 1)?;
                text.push(',');
            }
            text.push(']');
        }
        b'"' => {
            let string: String = serde_json::from_str(raw).ok()?;
            let _ = write!(text, "{}", serde_json::Value::from(string));
        }
        _ => text.push_str(raw),
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(json: &str) -> Option<String> {
        chosen(json.as_bytes(), &["a".into(), "b".into()])
    }

    #[test]
    fn layout_makes_no_difference_and_values_do() {
        let one = fields(r#"{"a":{"x":[1,"\u0061"],"y":null},"b":2,"c":3}"#);
        assert!(one.is_some());
        let other = fields(r#" { "b" : 2, "c":4, "a" : { "y":null, "x":[ 1, "a" ] } }"#);
        assert_eq!(one, other);
        for json in [
            r#"{"a":{"x":[1,"a"],"y":0},"b":2}"#,
            r#"{"a":{"x":["a",1],"y":null},"b":2}"#,
            r#"{"a":{"x":[1,"a"],"y":null}}"#,
            r#"{"b":{"x":[1,"a"],"y":null},"a":2}"#,
        ] {
            assert_ne!(one, fields(json), "{json}");
        }
    }

    #[test]
    fn what_a_float_would_make_one_are_two() {
        for (one, other) in [
            ("123456789012345678901", "123456789012345678902"),
            ("0.1", "0.10000000000000000001"),
            ("1", "\"1\""),
        ] {
            let of = |value| fields(&format!("{{\"a\":{value}}}"));
            assert_ne!(of(one), of(other));
        }
    }

    #[test]
    fn a_field_that_stands_there_twice_is_another_request() {
        assert_ne!(fields(r#"{"a":1,"a":2}"#), fields(r#"{"a":2}"#));
    }

    #[test]
    fn what_is_nested_deeply_is_not_taken_apart() {
        let nested = |depth| format!("{{\"a\":{}{}}}", "[".repeat(depth), "]".repeat(depth));
        assert!(fields(&nested(30)).is_some());
        assert_eq!(fields(&nested(40)), None);
        assert_eq!(fields(&nested(100_000)), None);
    }

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

    #[test]
    fn what_is_no_object_has_no_fields() {
        for json in ["", "[]", "1", "{", "{\"a\":1}x", "{\"a\":\"\u{0}\"}"] {
            assert_eq!(fields(json), None, "{json}");
        }
        assert_eq!(fields("{}").as_deref(), Some(""));
    }
}
