//! Whose records they are: the principal, and the service where several share a database.

use rowlock::layer::HTTP_SCOPES;

const LONGEST_NAME: usize = 50;

/// The mark of a scope with a service. A principal that begins with it has it twice.
const SERVICE: u8 = b'@';

/// Whether this may be the name of a service: it ends before the colon that comes after it in a scope.
pub(crate) fn is_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=LONGEST_NAME).contains(&name.len()) && name.bytes().all(allowed)
}

/// The scope without its prefix. Two principals, or two services, never have the same one.
pub(crate) fn owner(service: Option<&str>, principal: &[u8]) -> Vec<u8> {
    match service {
        Some(service) => [&[SERVICE], service.as_bytes(), b":", principal].concat(),
        None if principal.first() == Some(&SERVICE) => [&[SERVICE], principal].concat(),
        None => principal.to_vec(),
    }
}

/// The scope of an [`owner`].
pub(crate) fn with_prefix(owner: &[u8]) -> Vec<u8> {
    [HTTP_SCOPES.as_bytes(), owner].concat()
}

/// The scope of the records of a layer without a [service](crate::IdempotencyLayer::service) for one `principal`:
/// `http:`, followed by the principal. (After an `@` at the beginning of the principal comes a second one.)
/// [`IdempotencyLayer::new`](crate::IdempotencyLayer::new) takes the function that returns the principal of a request.
///
/// [`Idempotency`](rowlock::Idempotency) refuses to begin an attempt in such a scope, so that the layer's records and
/// those of the server's own code never mix. It inspects and resolves records there.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let url = format!("sqlite:{}/shop.db?mode=rwc", dir.path().display());
/// # let rowlock = rowlock::Rowlock::connect(&url).await?;
/// let record = rowlock.idempotency().inspect(rowlock::Scope(rowlock_http::scope("alice")).key("order-17")).await?;
/// # assert!(record.is_none());
/// assert_eq!(rowlock_http::scope("alice"), b"http:alice"); // rowlock idempotency show http:alice order-17
/// # Ok(())
/// # }
/// ```
#[must_use]
pub fn scope(principal: impl AsRef<[u8]>) -> Vec<u8> {
    with_prefix(&owner(None, principal.as_ref()))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn two_services_or_principals_never_have_one_scope() {
        let services = [None, Some("a"), Some("a.b"), Some("b")];
        let principals = [
            "a", "@a", "@@a", "@a:b", "@@a:b", "a:b", "@", "b", "@a:@a", "@a.b:a",
        ];
        let all = services
            .into_iter()
            .flat_map(|service| principals.map(|principal| owner(service, principal.as_bytes())));
        let all: HashSet<_> = all.collect();
        assert_eq!(all.len(), services.len() * principals.len());
        assert_eq!(with_prefix(&owner(Some("a"), b"b")), b"http:@a:b");
        assert_eq!(scope("@b"), b"http:@@b");
    }

    #[test]
    fn the_name_of_a_service_has_an_end() {
        for name in ["payments", "a", "a-1_b.c", &"x".repeat(50)] {
            assert!(is_name(name), "{name}");
        }
        for name in ["", "a:b", "@a", "a b", "\u{e9}", &"x".repeat(51)] {
            assert!(!is_name(name), "{name}");
        }
    }
}
