//! A body of several parts (`multipart/form-data`, RFC 7578) counts by its parts: a client chooses another boundary
//! for each try.

use std::str::FromStr;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use mime::Mime;
use rowlock::{Fingerprint, FingerprintPieces};

/// The digest of the parts in their order, with each byte of them: parsers differ in what they make of a part. `None`:
/// the body is not `multipart/form-data`, or has bytes besides its parts and the boundaries between them.
pub(super) async fn digest(head: &Parts, body: &Bytes) -> Option<Fingerprint> {
    let content_type = head.headers.get(CONTENT_TYPE)?.to_str().ok()?;
    let content_type = Mime::from_str(content_type).ok()?;
    if (content_type.type_(), content_type.subtype()) != (mime::MULTIPART, mime::FORM_DATA) {
        return None;
    }
    let boundary = content_type.get_param(mime::BOUNDARY)?;
    let delimiter = format!("\r\n--{boundary}");
    let mut rest = body.strip_prefix(&delimiter.as_bytes()[2..])?;
    let mut all = Fingerprint::builder();
    loop {
        if let Some(end) = rest.strip_prefix(b"--") {
            return matches!(end, b"" | b"\r\n").then(|| all.finish());
        }
        let part = rest.strip_prefix(b"\r\n")?;
        let end = memchr::memmem::find(part, delimiter.as_bytes())?;
        let mut content = FingerprintPieces::new();
        content.add(&part[..end]);
        all = all.pieces(content);
        rest = &part[end + delimiter.len()..];
        // All of it is there already. This lets other tasks run.
        tokio::task::consume_budget().await;
    }
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

    /// Parsers skip these: a handler that reads the bytes, or parses them in another way, sees two requests.
    #[tokio::test]
    async fn all_bytes_of_a_part_count() {
        let of = async |body: String| raw("multipart/form-data; boundary=x", body).await;
        let disposition = "Content-Disposition: form-data; name=\"a\"";
        for part in [
            "\r\ncents={}\r\n\r\nz",
            &format!("{disposition}\n\ncents={{}}\r\n\r\nz"),
            &format!("X-Cents: {{}}\r\n{disposition}\r\nX-Cents: 1\r\n\r\nz"),
        ] {
            let [one, other] = ["100", "900"].map(|cents| part.replace("{}", cents));
            let one = of(format!("--x\r\n{one}\r\n--x--\r\n")).await;
            assert!(one.is_some());
            assert_ne!(
                one,
                of(format!("--x\r\n{other}\r\n--x--\r\n")).await,
                "{part}"
            );
        }
        let part = format!("{disposition}\r\n\r\nz\r\n");
        assert_eq!(of(format!("--x 100\r\n{part}--x--")).await, None);
        assert_eq!(
            of(format!("--x\r\n{part}--x 100\r\n{part}--x--")).await,
            None
        );
        assert_eq!(of(format!("--x\r\n{part}--xy\r\n{part}--x--")).await, None);
    }

    #[tokio::test]
    async fn the_boundary_makes_no_difference_and_the_parts_do() {
        let parts = [("name=\"a\"", "1"), ("name=\"f\"; filename=\"x.txt\"", "2")];
        let one = of("AaB03x", &parts).await;
        assert!(one.is_some());
        assert_eq!(one, of("another", &parts).await);
        let body = "--aB\r\n1\r\n--aB--";
        let quoted = raw("Multipart/Form-Data; Boundary=\"aB\"", body).await;
        assert!(quoted.is_some());
        assert_eq!(quoted, raw("multipart/form-data; boundary=aB", body).await);
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
