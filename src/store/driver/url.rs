//! Checks of database URLs that explain more than the driver does. No message repeats a part that may be a password.

use std::borrow::Cow;
use std::num::ParseIntError;
use std::path::PathBuf;

use crate::model::{ConnectError, Error};

/// The end of the name of a parameter that has any name in brackets.
const ANY: &str = "NAME]";

/// A parameter's name and value.
pub(crate) type Parameter<'u> = (Cow<'u, str>, Cow<'u, str>);

fn refused(reason: impl Into<String>) -> Error {
    Error::Connect(ConnectError::InvalidUrl {
        reason: reason.into(),
    })
}

/// The driver's reason for refusing a URL, with the expected form. `ssl` lists the ways of using TLS. The driver
/// quotes values: one that is wrong may be a password that was meant for another place.
pub(crate) fn unparsed(error: &sqlx::Error, form: &str, ssl: &str) -> Error {
    let said = match error {
        sqlx::Error::Configuration(error) if error.is::<ParseIntError>() => {
            "a parameter is not a number where one is needed (`port`, `statement-cache-capacity`)"
                .into()
        }
        sqlx::Error::Configuration(error) => error.to_string(),
        other => other.to_string(),
    };
    let said = said.trim_start_matches("error with configuration: ");
    let said = if said.starts_with("unknown value") {
        let name = said.rsplit('`').nth(1).unwrap_or_default();
        let values = if name == "ssl_mode" { ssl } else { "" };
        format!("the value of its parameter `{name}` is unknown{values}")
    } else {
        said.to_owned()
    };
    refused(format!("{said}; write the URL as {form}"))
}

/// The host in the form that a resolver takes: an IPv6 address without its brackets.
pub(crate) fn host(host: &str) -> &str {
    let inner = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    inner.unwrap_or(host)
}

/// The name of a server's database, for messages: always without its password.
pub(crate) fn target(
    scheme: &str,
    user: &str,
    addresses: impl Iterator<Item = String>,
    database: &str,
) -> String {
    let addresses: Vec<String> = addresses.collect();
    format!("{scheme}://{user}@{}/{database}", addresses.join(","))
}

/// The address of a server: its socket, or its host and port.
pub(crate) fn address(socket: Option<&PathBuf>, host: &str, port: u16) -> String {
    if let Some(socket) = socket {
        return socket.display().to_string();
    }
    if host.contains(':') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

/// The parameters of a URL, as the driver reads them. Refuses what the driver would leave out, by its name only:
/// without it the URL means something else than its author wants, and its value may be a password. `known` are the
/// names that have an effect, and `hint` goes on after their list.
pub(crate) fn parameters<'u>(
    url: &'u str,
    known: &[&str],
    hint: &str,
) -> Result<Vec<Parameter<'u>>, Error> {
    let (before, text) = url.split_once('?').unwrap_or((url, ""));
    let pieces = || text.split('&').filter(|piece| !piece.is_empty());
    // They may be the rest of a password.
    let is_doubtful = !before.contains('@') && text.contains('@');
    let all: Vec<_> = form_urlencoded::parse(text.as_bytes()).collect();
    for (at, (name, _)) in all.iter().enumerate() {
        let is_known = known.iter().any(|known| match known.strip_suffix(ANY) {
            Some(open) => name.starts_with(open) && name.ends_with(']'),
            None => known == name,
        });
        let known = known.join(", ");
        if !is_known && is_doubtful {
            return Err(refused(format!(
                "there is a `?` before its `@`, and what follows is no parameter: write %3F in a user or a password (its parameters \
                 may be {known}{hint})"
            )));
        }
        if !is_known && pieces().any(|piece| !piece.contains('=')) {
            return Err(refused(format!(
                "one of its parameters has no `=`: write %26 for an `&` in a value (its parameters may be {known}{hint})"
            )));
        }
        if !is_known {
            return Err(refused(format!(
                "its parameter `{name}` is unknown, and would have no effect: its parameters may be {known}{hint}"
            )));
        }
        if *name != "options" && all[..at].iter().any(|(earlier, _)| earlier == name) {
            return Err(refused(format!(
                "it has the parameter `{name}` twice: leave one out"
            )));
        }
    }
    Ok(all)
}

/// Checks the part before the database's name in a server's URL, and all percent escapes.
pub(crate) fn check_server(url: &str, form: &str) -> Result<(), Error> {
    let Some((_, rest)) = url.split_once("://") else {
        return Err(refused(format!("`//` is missing after the scheme: {form}")));
    };
    check_text(url)?;
    if url.contains('#') {
        return Err(refused(
            "it contains a `#`: write %23 in a user, a password or a name",
        ));
    }
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, after) = rest.split_at(end);
    let path = after.split('?').next().unwrap_or_default();
    if !authority.contains('@') && path.contains('@') {
        return Err(refused(
            "there is a `/` before its `@`: write %2F in a user or a password, and %40 in the name of a database",
        ));
    }
    let hosts = authority.rsplit('@').next().unwrap_or_default();
    if hosts.contains('&') || path.contains('&') {
        return Err(refused(
            "there is an `&` before its parameters: write `?` before the first one, and %26 in the name of a database",
        ));
    }
    hosts.split(',').try_for_each(check_host)
}

fn check_host(host: &str) -> Result<(), Error> {
    let port = if let Some(address) = host.strip_prefix('[') {
        let Some((_, port)) = address.split_once(']') else {
            return Err(refused("the `[` of an IPv6 address is not closed"));
        };
        port.strip_prefix(':')
    } else if host.matches(':').count() > 1 {
        return Err(refused(
            "a host has more than one `:`: an IPv6 address is written as [::1]:PORT",
        ));
    } else {
        host.split_once(':').map(|(_, port)| port)
    };
    match port {
        Some(port) if !port.is_empty() && !port.parse::<u16>().is_ok_and(|port| port > 0) => {
            Err(refused(
                "its port is not a number from 1 to 65535 (in a user or a password write %2F for `/`, %3F for `?` and \
                 %40 for `@`)",
            ))
        }
        _ => Ok(()),
    }
}

/// Refuses characters that no URL contains, and malformed percent escapes.
pub(crate) fn check_text(url: &str) -> Result<(), Error> {
    if url.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err(refused(
            "it contains a space or a control character: write %20 for a space",
        ));
    }
    check_escapes(url)
}

/// Refuses malformed percent escapes, and escapes that are not UTF-8.
pub(crate) fn check_escapes(url: &str) -> Result<(), Error> {
    let mut said = Vec::with_capacity(url.len());
    let mut rest = url.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'%' {
            said.push(byte);
            continue;
        }
        let digit = |at: usize| char::from(*after.get(at)?).to_digit(16);
        let (Some(high), Some(low)) = (digit(0), digit(1)) else {
            return Err(refused(
                "it contains a `%` without two hexadecimal digits after it: write %25 for a percent sign",
            ));
        };
        said.push(u8::try_from(high * 16 + low).unwrap_or_default());
        rest = &after[2..];
    }
    match String::from_utf8(said) {
        Ok(_) => Ok(()),
        Err(_) => Err(refused(
            "its percent escapes are not UTF-8: escape the text's UTF-8 bytes",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORM: &str = "postgres://USER:PASSWORD@HOST:PORT/DATABASE";

    #[test]
    fn a_url_that_cannot_be_used_is_told_why() {
        for (url, why) in [
            ("postgres:me@h/shop", "`//` is missing"),
            ("postgres://me@h:99999/shop", "port"),
            ("postgres://me@h:0/shop", "port"),
            ("postgres://me@h1:1,h2:x/shop", "port"),
            ("postgres://me:s3?cret@h/shop", "%3F"),
            ("postgres://me:s3/cret@h/shop", "%2F"),
            ("postgres://me/s3cret@h/shop", "%2F"),
            ("postgres://me:s3#cret@h/shop", "%23"),
            ("postgres://me:s3%zzcret@h/shop", "%25"),
            ("postgres://me:s3cret%@h/shop", "%25"),
            ("postgres://me:s3cret%2@h/shop", "%25"),
            ("postgres://me:s3cret%ff@h/shop", "UTF-8"),
            ("postgres://me:s3 cret@h/shop", "space"),
            ("postgres://me:s3cret@h/shop\n", "control"),
            ("postgres://me@::1:5432/shop", "[::1]"),
            ("postgres://me@h/shop&password=s3cret", "`?`"),
            ("postgres://me@h&password=s3cret", "`?`"),
            ("postgres://me@[::1/shop", "not closed"),
        ] {
            let error = check_server(url, FORM).unwrap_err().to_string();
            assert!(error.contains(why), "{url:?}: {error}");
            assert!(!error.contains("cret"), "{error}");
        }
    }

    #[test]
    fn an_ipv6_address_is_shown_in_brackets_and_resolved_without() {
        assert_eq!((host("[::1]"), host("::1"), host("h")), ("::1", "::1", "h"));
        assert_eq!(
            (
                address(None, "::1", 1).as_str(),
                address(None, "h", 1).as_str()
            ),
            ("[::1]:1", "h:1")
        );
    }

    #[test]
    fn a_url_that_can_be_used_is_not_refused() {
        for url in [
            "postgres://me:a%2C%C3%A9b@h:5432/shop?sslmode=require",
            "postgres://me:p@ss@h/shop",
            "postgres://me@h:/shop",
            "postgres:///shop?host=/run/postgresql&password=a@b/c",
            "mysql://me:p@h1:1,[::1]:2,[::1],h3/shop?x=1,2",
            "postgres://",
        ] {
            check_server(url, FORM).unwrap();
        }
    }

    #[test]
    fn a_parameter_without_effect_is_refused_and_no_value_is_told() {
        let known: &[&str] = &["sslmode", "options", "options[NAME]", "rowlock_pooler"];
        for (url, why) in [
            ("s://h/d?rowlock_prepard=s3cret", "`rowlock_prepard`"),
            (
                "s://h/d?sslmode=a&Rowlock_Pooler=s3cret",
                "`Rowlock_Pooler`",
            ),
            ("s://h/d?sslm%6fd=s3cret", "`sslmod`"),
            ("s://h/d?+sslmode=s3cret", "` sslmode`"),
            ("s://h/d?=s3cret", "``"),
            ("s://h/d?options[a=s3cret", "`options[a`"),
            ("s://h/d?sslmode=s3cret&sslmode=b", "twice"),
            ("s://h/d?sslmode=a&s3cret", "%26"),
            ("s://me:123?s3cret=4&x=5@h/d", "%3F"),
        ] {
            let error = parameters(url, known, "").unwrap_err().to_string();
            assert!(error.contains(why), "{url}: {error}");
            assert!(!error.contains("s3cret"), "{error}");
        }
        for url in [
            "s://h/d?rowlock_pooler=session&sslmode=a&",
            "s://h/d?options=-a&options%5Ba%5D=1&options[b]=2&options=-b",
            "s://h/x=y",
        ] {
            parameters(url, known, "").unwrap();
        }
    }
}
