//! URLs of servers, of databases on them, and of their users.

use rowlock::Engine;

/// The variable that holds a server's URL.
pub fn variable(engine: Engine) -> String {
    format!("ROWLOCK_TEST_{}_URL", engine.name().to_uppercase())
}

/// The URL of a server on which the tests may create databases.
pub(crate) fn server(engine: Engine) -> String {
    let variable = variable(engine);
    std::env::var(&variable).unwrap_or_else(|_| {
        panic!("{variable} is not set: run ./test.sh, which starts the servers, or set it to a URL")
    })
}

/// `url` for another user, whose password is `password`.
pub fn as_user(url: &str, user: &str, password: &str) -> String {
    let authority = url.find("://").unwrap() + 3;
    let host = url[authority..]
        .find('@')
        .map_or(authority, |at| authority + at + 1);
    format!("{}{user}:{password}@{}", &url[..authority], &url[host..])
}

pub fn with_database(server: &str, name: &str) -> String {
    let (base, query) = server
        .split_once('?')
        .map_or((server, ""), |(base, query)| (base, query));
    let authority = base.find("://").map_or(0, |at| at + 3);
    let end = base[authority..]
        .find('/')
        .map_or(base.len(), |at| authority + at);
    let question = if query.is_empty() { "" } else { "?" };
    format!("{}/{name}{question}{query}", &base[..end])
}
