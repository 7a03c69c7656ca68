//! Several servers in one URL, as libpq writes them: `scheme://USER:PASSWORD@HOST1:PORT1,HOST2:PORT2/DATABASE`.

use crate::model::{ConnectError, Error};

/// A URL for each server that `url` names.
pub(crate) fn each(url: &str) -> Result<Vec<String>, Error> {
    let start = url.find("://").map_or(0, |at| at + 3);
    let end = url[start..]
        .find(['/', '?', '#'])
        .map_or(url.len(), |at| start + at);
    let hosts = url[start..end]
        .rfind('@')
        .map_or(start, |at| start + at + 1);
    let (before, after) = (&url[..hosts], &url[end..]);
    let hosts: Vec<&str> = url[hosts..end].split(',').collect();
    if hosts.len() > 1 && hosts.contains(&"") {
        return Err(Error::Connect(ConnectError::InvalidUrl {
            reason:
                "one of its servers has no name: write several servers as HOST1:PORT1,HOST2:PORT2"
                    .into(),
        }));
    }
    let one = |host: &str| format!("{before}{host}{after}");
    Ok(hosts.into_iter().map(one).collect())
}

/// Refuses a list of servers where rowlock cannot split it.
pub(crate) fn only_one(host: &str) -> Result<(), Error> {
    if host.contains(',') {
        return Err(Error::Connect(ConnectError::InvalidUrl {
            reason: "its parameter `host` names several servers: write them as \
                     …://USER:PASSWORD@HOST1:PORT1,HOST2:PORT2/DATABASE"
                .into(),
        }));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_server_of_a_url_gets_one_of_its_own() {
        let urls = |url| each(url).unwrap();
        let one = "postgres://me:a%2Cb@h/shop?x=1,2";
        assert_eq!(urls(one), [one]);
        assert_eq!(
            urls("mysql://me:p@h1:1,[::1]:2,h3/shop?x=1,2"),
            [
                "mysql://me:p@h1:1/shop?x=1,2",
                "mysql://me:p@[::1]:2/shop?x=1,2",
                "mysql://me:p@h3/shop?x=1,2"
            ]
        );
        assert_eq!(urls("postgres://h1,h2"), ["postgres://h1", "postgres://h2"]);
        assert!(each("postgres://me:s3cret@h1,/shop").is_err());
        assert!(only_one("h1,h2").is_err());
    }
}
