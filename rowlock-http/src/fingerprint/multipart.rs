//! A body of several parts (`multipart/form-data`, RFC 7578) counts by its parts: a client chooses another boundary
//! for each try.

use std::convert::Infallible;

use bytes::Bytes;
use futures_util::stream;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use multer::Multipart;
use rowlock::{Fingerprint, FingerprintPieces};

/// The digest of the parts in their order: of the headers and the bytes of each. `None`: the body is not
/// `multipart/form-data`, is malformed, or has bytes before its first boundary or after its last one: a handler may
/// read these.
pub(super) async fn digest(head: &Parts, body: &Bytes) -> Option<Fingerprint> {
    let content_type = head.headers.get(CONTENT_TYPE)?;
    let boundary = multer::parse_boundary(content_type.to_str().ok()?).ok()?;
    if !has_only_parts(body, &boundary) {
        return None;
    }
    let whole = stream::iter([Ok::<_, Infallible>(body.clone())]);
    let mut multipart = Multipart::new(whole, boundary);
    let mut all = Fingerprint::builder();
    while let Some(mut part) = multipart.next_field().await.ok()? {
        // All of it is there already. This lets other tasks run.
        tokio::task::consume_budget().await;
        all = all.part((part.headers().len() as u64).to_be_bytes());
        for (name, value) in part.headers() {
            all = all.part(name.as_str()).part(value.as_bytes());
        }
        let mut content = FingerprintPieces::new();
        while let Some(chunk) = part.chunk().await.ok()? {
            content.add(chunk);
        }
        all = all.pieces(content);
    }
    Some(all.finish())
}

/// Whether the body begins with its first boundary, and ends with the first one that ends it.
fn has_only_parts(body: &[u8], boundary: &str) -> bool {
    let end = format!("\r\n--{boundary}--");
    let mut ends = memchr::memmem::find_iter(body, end.as_bytes());
    let rest = ends.next().and_then(|at| body.get(at + end.len()..));
    let has_parts = body.starts_with(format!("--{boundary}\r\n").as_bytes());
    // A form without parts is its end.
    let rest = rest
        .filter(|_| has_parts)
        .or_else(|| body.strip_prefix(&end.as_bytes()[2..]));
    matches!(rest, Some(b"" | b"\r\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn of(boundary: &str, parts: &[(&str, &str)]) -> Option<Fingerprint> {
        let part = |(head, content): &(&str, &str)| {
            format!("--{boundary}\r\nContent-Disposition: form-data; {head}\r\n\r\n{content}\r\n")
        };
        let parts: String = parts.iter().map(part).collect();
        let body = format!("{parts}--{boundary}--\r\n");
        raw(&format!("multipart/form-data; boundary={boundary}"), body).await
    }

    async fn raw(content_type: &str, body: impl Into<Bytes>) -> Option<Fingerprint> {
        let request = http::Request::builder().header(CONTENT_TYPE, content_type);
        let (head, ()) = request.body(()).unwrap().into_parts();
        digest(&head, &body.into()).await
    }

    /// A handler that reads the bytes, or parses them in another way, sees two requests.
    #[tokio::test]
    async fn bytes_before_the_first_boundary_or_after_the_last_one_count() {
        let part = "--x\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n";
        let of = async |body: String| raw("multipart/form-data; boundary=x", body).await;
        for end in ["--x--", "--x--\r\n"] {
            assert!(of(format!("{part}{end}")).await.is_some());
            assert!(of(end.into()).await.is_some(), "a form without parts");
        }
        for body in [
            format!("{part}--x--\r\n{part}--x--\r\n"),
            format!("{part}--x--more"),
            format!("{part}--x--\r\nmore"),
            format!("before\r\n{part}--x--"),
            format!("\r\n{part}--x--"),
        ] {
            assert_eq!(of(body.clone()).await, None, "{body}");
        }
    }

    #[tokio::test]
    async fn the_boundary_makes_no_difference_and_the_parts_do() {
        let parts = [("name=\"a\"", "1"), ("name=\"f\"; filename=\"x.txt\"", "2")];
        let one = of("AaB03x", &parts).await;
        assert!(one.is_some());
        assert_eq!(one, of("another", &parts).await);
        for other in [
            [("name=\"b\"", "1"), parts[1]],
            [("name=\"a\"", "2"), parts[1]],
            [parts[0], ("name=\"f\"; filename=\"y.txt\"", "2")],
            [parts[0], ("name=\"f\"", "2")],
            [parts[1], parts[0]],
            [("name=\"a\"\r\nContent-Type: text/html", "1"), parts[1]],
            [("name=\"a\"\r\nContent-ID: 1", "1"), parts[1]],
            [
                parts[0],
                (
                    "name=\"f\"; filename=\"x.txt\"; filename*=UTF-8''y.txt",
                    "2",
                ),
            ],
        ] {
            let other = of("AaB03x", &other).await;
            assert!(other.is_some() && other != one);
        }
        assert_ne!(one, of("AaB03x", &parts[..1]).await);
    }

    #[tokio::test]
    async fn what_is_no_form_or_is_malformed_is_not_taken_apart() {
        let form = "multipart/form-data; boundary=x";
        for (content_type, body) in [
            ("application/json", "{}"),
            ("multipart/form-data", "--x--"),
            (form, ""),
            (
                form,
                "--x\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1",
            ),
            (form, "--y\r\n\r\n1\r\n--y--\r\n"),
        ] {
            assert_eq!(raw(content_type, body).await, None, "{content_type} {body}");
        }
    }
}
