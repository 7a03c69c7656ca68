//! Cookies: the session of a login, and the seed of form tokens.
//!
//! Both are random. The cookie of a login is kept as a digest only, in this process. The token in a form is a code
//! (HMAC) over the seed, the session and the person, so that a form works for nobody else.

use std::collections::HashMap;
use std::fmt;
use std::time::{Duration, Instant};

use hmac::{Hmac, KeyInit, Mac};
use http::header::COOKIE;
use http::request::Parts;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use uuid::Uuid;

/// The names of a console's cookies. A browser sends a cookie to all ports of a host: with a random part, two consoles
/// on one host do not take each other's.
#[derive(Debug)]
pub(crate) struct CookieNames {
    /// The cookie of a login.
    pub(crate) login: String,
    /// The cookie that the tokens of forms belong to.
    pub(crate) forms: String,
}

impl CookieNames {
    pub(crate) fn new() -> Self {
        let part = &random()[..8];
        Self {
            login: format!("rowlock_console_login_{part}"),
            forms: format!("rowlock_console_forms_{part}"),
        }
    }
}

/// A login ends after this time.
const LASTS: Duration = Duration::from_hours(12);

/// The most logins at a time. One more ends the oldest one.
const MOST: usize = 1_000;

/// The names that people gave when they logged in, by the digest of their cookie.
#[derive(Debug, Default)]
pub(crate) struct Logins(Mutex<HashMap<[u8; 32], Login>>);

#[derive(Debug)]
struct Login {
    name: String,
    at: Instant,
}

impl Logins {
    /// Begins a login, and returns the value of its cookie.
    pub(crate) fn begin(&self, name: String) -> String {
        let cookie = random();
        let mut all = self.0.lock();
        all.retain(|_, login| login.at.elapsed() < LASTS);
        if all.len() >= MOST {
            let oldest = all.iter().min_by_key(|(_, login)| login.at);
            let oldest = oldest.map(|(digest, _)| *digest);
            oldest.and_then(|digest| all.remove(&digest));
        }
        let at = Instant::now();
        all.insert(digest(&cookie), Login { name, at });
        cookie
    }

    /// The name behind a cookie, if its login lasts.
    pub(crate) fn name(&self, cookie: &str) -> Option<String> {
        let all = self.0.lock();
        let login = all.get(&digest(cookie))?;
        (login.at.elapsed() < LASTS).then(|| login.name.clone())
    }

    pub(crate) fn end(&self, cookie: &str) {
        self.0.lock().remove(&digest(cookie));
    }
}

/// A text that stands in no log.
pub(crate) struct Secret(String);

impl Secret {
    pub(crate) fn new(secret: String) -> Self {
        Self(secret)
    }

    /// Compares in a time that tells neither the length of the secret nor where it differs.
    pub(crate) fn is(&self, given: &str) -> bool {
        digest(given).ct_eq(&digest(&self.0)).into()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// The key of form tokens, which this process has made.
#[derive(Debug)]
pub(crate) struct Seal(Secret);

impl Seal {
    pub(crate) fn new() -> Self {
        Self(Secret(random()))
    }

    /// The token of the forms of one person in one session.
    pub(crate) fn token(&self, seed: &str, session: &str, who: &str) -> String {
        hex::encode(self.code(seed, session, who))
    }

    /// Compares in constant time.
    pub(crate) fn is_token(&self, given: &str, seed: &str, session: &str, who: &str) -> bool {
        let code = self.code(seed, session, who);
        let given = hex::decode(given).unwrap_or_default();
        !seed.is_empty() && bool::from(given.ct_eq(&code))
    }

    fn code(&self, seed: &str, session: &str, who: &str) -> [u8; 32] {
        let mut code = Hmac::<Sha256>::new_from_slice(self.0.0.as_bytes())
            .unwrap_or_else(|_| unreachable!("HMAC takes keys of any length"));
        for part in [seed, session, who] {
            // The length, so that no two lists of parts are one text.
            code.update(&(part.len() as u64).to_be_bytes());
            code.update(part.as_bytes());
        }
        code.finalize().into_bytes().into()
    }
}

/// The first cookie of this name. (Two come from a page of another path. Its value has no meaning here.)
pub(crate) fn cookie<'a>(parts: &'a Parts, name: &str) -> &'a str {
    let headers = parts.headers.get_all(COOKIE).iter();
    let cookies = headers.filter_map(|header| header.to_str().ok());
    let mut cookies = cookies.flat_map(|header| header.split(';'));
    let value = cookies.find_map(|pair| pair.trim().strip_prefix(name)?.strip_prefix('='));
    value.unwrap_or_default()
}

/// The header that sets a cookie. An empty value removes it.
pub(crate) fn set_cookie(parts: &Parts, base: &str, name: &str, value: &str) -> String {
    let path = if base.is_empty() { "/" } else { base };
    let path: String = path.chars().filter(|c| !matches!(c, ';' | ',')).collect();
    let end = if value.is_empty() { "; Max-Age=0" } else { "" };
    let proxy = parts.headers.get("x-forwarded-proto");
    let is_https = parts.uri.scheme_str() == Some("https")
        || proxy.is_some_and(|scheme| scheme.as_bytes() == b"https");
    let secure = if is_https { "; Secure" } else { "" };
    format!("{name}={value}; Path={path}; HttpOnly; SameSite=Strict{secure}{end}")
}

/// 244 random bits.
pub(crate) fn random() -> String {
    format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple())
}

pub(crate) fn digest(text: &str) -> [u8; 32] {
    Sha256::digest(text).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_of_one_seed_session_and_person() {
        let seal = Seal::new();
        let token = seal.token("seed", "session", "ann");
        assert!(seal.is_token(&token, "seed", "session", "ann"));
        for (seed, session, who) in [
            ("", "session", "ann"),
            ("seed", "sessiona", "nn"),
            ("seed", "session", "bob"),
            ("seeds", "ession", "ann"),
        ] {
            assert!(!seal.is_token(&token, seed, session, who));
        }
        assert!(!Seal::new().is_token(&token, "seed", "session", "ann"));
        assert!(!seal.is_token("", "seed", "session", "ann"));
        let of_nobody = seal.token("", "", "");
        assert!(!seal.is_token(&of_nobody, "", "", ""));
    }

    #[test]
    fn a_secret_is_compared_and_not_shown() {
        let secret = Secret::new("s3cret".into());
        assert!(secret.is("s3cret"));
        assert!(!secret.is("") && !secret.is("s3cre") && !secret.is("s3cret "));
        assert!(!format!("{:?}", Seal(secret)).contains("s3cret"));
    }

    #[test]
    fn the_oldest_login_ends_when_there_are_too_many() {
        let logins = Logins::default();
        let first = logins.begin("first".into());
        let second = logins.begin("second".into());
        assert_eq!(logins.name(&first).as_deref(), Some("first"));
        for _ in 2..=MOST {
            logins.begin("more".into());
        }
        assert_eq!(logins.name(&first), None);
        logins.end(&second);
        assert_eq!(logins.name(&second), None);
        assert_eq!(logins.name(""), None);
    }
}
