//! Checks of database URLs that explain more than the driver does. No message repeats a part that may be a password.

use std::num::ParseIntError;
use std::path::PathBuf;

use crate::model::Error;

/// The prefix of rowlock's own parameters.
const OWN: &str = "rowlock";

fn refused(reason: impl Into<String>) -> Error {
    Error::InvalidUrl {
        reason: reason.into(),
    }
}

/// The driver's reason for refusing a URL, with the expected form. `ssl` lists the ways of using TLS.
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
    let values = if said.contains("ssl_mode") { ssl } else { "" };
    refused(format!("{said}{values}; write the URL as {form}"))
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

/// Refuses parameters that look like rowlock's own and are not `known`: if they were ignored, the URL would mean something else
/// than its author wants.
pub(crate) fn check_parameters(url: &str, known: &[&str]) -> Result<(), Error> {
    let parameters = url.split_once('?').map_or("", |(_, parameters)| parameters);
    for parameter in parameters.split(['&', '#']) {
        let name = parameter.split('=').next().unwrap_or_default();
        let plain = name.to_ascii_lowercase();
        if plain.starts_with(OWN) && !known.contains(&name) {
            return Err(refused(format!(
                "the parameter `{name}` is unknown for this engine: rowlock's only one is `rowlock_pooler=transaction` or \
                 `rowlock_pooler=session`, for PostgreSQL"
            )));
        }
    }
    Ok(())
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
    fn an_unknown_parameter_of_rowlocks_own_is_refused() {
        let known: &[&str] = &["rowlock_pooler"];
        for url in [
            "s://h/d?rowlock_prepard=off",
            "s://h/d?a=1&rowlock_x",
            "s://h/d?Rowlock_Pooler=session",
        ] {
            let error = check_parameters(url, known).unwrap_err().to_string();
            assert!(error.contains("`rowlock_pooler=session`"), "{error}");
        }
        check_parameters(
            "s://h/d?rowlock_pooler=session&application_name=rowlock",
            known,
        )
        .unwrap();
        check_parameters("s://h/rowlock_x", known).unwrap();
        check_parameters("s://h/d?rowlock_pooler=session", &[]).unwrap_err();
    }
}
