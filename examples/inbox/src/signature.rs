//! The signature of a webhook, as Stripe makes it: `t=1700000000,v1=5257a869…`, an HMAC with SHA-256 of the time, a
//! dot and the body. (Stripe, "Resolve webhook signature verification errors".)

use std::time::{Duration, SystemTime};

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// The header that has the signature.
pub const HEADER: &str = "stripe-signature";

/// How old a signature may be: an old one may have been recorded.
const TOLERANCE: Duration = Duration::from_mins(5);

/// How many signatures of a header are looked at.
const SIGNATURES: usize = 5;

/// Signs a body, for tests and for `curl`.
#[must_use]
pub fn sign(secret: &str, body: &[u8], at: SystemTime) -> String {
    let time = seconds(at).to_string();
    let mac = mac(secret, &time, body).finalize().into_bytes();
    format!("t={time},v1={}", hex::encode(mac))
}

/// Whether the provider has signed this body a short while ago. A header may have several signatures, while the secret
/// changes; the first few count.
#[must_use]
pub fn is_signed(secret: &str, header: &str, body: &[u8], now: SystemTime) -> bool {
    let parts = || header.split(',').filter_map(|part| part.split_once('='));
    let Some((_, time)) = parts().find(|(name, _)| *name == "t") else {
        return false;
    };
    let is_recent = |sent: u64| seconds(now).abs_diff(sent) <= TOLERANCE.as_secs();
    if !time.parse().is_ok_and(is_recent) {
        return false;
    }
    let ours = mac(secret, time, body);
    let is_ours = |(_, signature): (&str, &str)| {
        let signature = hex::decode(signature).unwrap_or_default();
        // It takes the same time, wherever the first difference is.
        ours.clone().verify_slice(&signature).is_ok()
    };
    let signatures = parts().filter(|(name, _)| *name == "v1");
    signatures.take(SIGNATURES).any(is_ours)
}

fn mac(secret: &str, time: &str, body: &[u8]) -> Hmac<Sha256> {
    let Ok(mac) = Hmac::<Sha256>::new_from_slice(secret.as_bytes()) else {
        unreachable!("a key may have any length")
    };
    mac.chain_update(time).chain_update(".").chain_update(body)
}

fn seconds(at: SystemTime) -> u64 {
    let since = at.duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_recent_signature_of_this_body_with_this_secret_counts() {
        let now = SystemTime::UNIX_EPOCH + TOLERANCE * 10;
        let header = sign("secret", b"body", now);
        assert!(is_signed("secret", &header, b"body", now));
        assert!(is_signed(
            "secret",
            &format!("{header},v1=00,v0=1"),
            b"body",
            now
        ));
        assert!(!is_signed("secret", &header, b"other", now));
        assert!(!is_signed("other", &header, b"body", now));
        for late in [now + TOLERANCE * 2, now - TOLERANCE * 2] {
            assert!(!is_signed("secret", &header, b"body", late));
        }
        for header in [
            "",
            "t=1",
            "v1=00",
            "t=x,v1=00",
            "t=,v1=",
            &header.replace("v1", "v0"),
        ] {
            assert!(!is_signed("secret", header, b"body", now), "{header}");
        }
    }
}
