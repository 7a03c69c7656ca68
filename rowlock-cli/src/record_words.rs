//! The words that name a record on the command line.

use rowlock::{Error, RecordKey};

use crate::{Failure, USAGE};

/// The record that two words name.
pub(crate) fn record(scope: &str, key: &str, is_hex: bool) -> Result<RecordKey, Failure> {
    let (scope, key) = (bytes(scope, is_hex)?, bytes(key, is_hex)?);
    Ok(RecordKey::new(scope, key).map_err(Error::from)?)
}

pub(crate) fn bytes(word: &str, is_hex: bool) -> Result<Vec<u8>, Failure> {
    if is_hex {
        parse_hex(word)
    } else {
        Ok(word.into())
    }
}

fn parse_hex(text: &str) -> Result<Vec<u8>, Failure> {
    let digit = |pair: &[u8]| {
        let pair = std::str::from_utf8(pair)
            .ok()
            .filter(|pair| pair.len() == 2)?;
        u8::from_str_radix(pair, 16).ok()
    };
    let bytes: Option<Vec<u8>> = text.as_bytes().chunks(2).map(digit).collect();
    bytes.ok_or_else(|| {
        let message = format!("`{text}` is not hexadecimal: write two digits for each byte");
        Failure::Other(message, USAGE)
    })
}
