//! Which headers of a response are kept.

use http::StatusCode;
use http::header::{
    ALLOW, AUTHORIZATION, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE,
    CONTENT_TYPE, HeaderName, RETRY_AFTER, SET_COOKIE, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
    WWW_AUTHENTICATE,
};

use crate::settings::Settings;

/// Without these headers a client cannot read the body.
const ALWAYS_KEPT: [HeaderName; 2] = [CONTENT_TYPE, CONTENT_ENCODING];

/// Secrets of one session, headers of the connection (RFC 9110, section 7.6.1), and the length, which each replay sets
/// anew.
const NEVER_KEPT: [HeaderName; 8] = [
    AUTHORIZATION,
    CONNECTION,
    CONTENT_LENGTH,
    SET_COOKIE,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];

impl Settings {
    pub(crate) fn keeps(&self, status: StatusCode, name: &HeaderName) -> bool {
        let hop = name.as_str().starts_with("proxy-") || name.as_str() == "keep-alive";
        let chosen = self.keep.as_ref().is_ok_and(|keep| keep.contains(name));
        // RFC 9110: with these statuses the headers are a part of what is said.
        let needed = match status.as_u16() {
            206 | 416 => *name == CONTENT_RANGE,
            401 => *name == WWW_AUTHENTICATE,
            405 => *name == ALLOW,
            500.. => *name == RETRY_AFTER,
            _ => false,
        };
        (ALWAYS_KEPT.contains(name) || chosen || needed) && !hop && !NEVER_KEPT.contains(name)
    }
}
