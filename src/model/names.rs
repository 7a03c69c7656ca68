//! The names of one call.

use super::{Error, InvalidError, Name, TransactionError};

/// Sorts the names. Refuses a call without a name, and one with a name twice.
pub(crate) fn sorted(mut names: Vec<Name>) -> Result<Vec<Name>, Error> {
    if names.is_empty() {
        return Err(Error::Invalid(InvalidError::Setting {
            setting: "names",
            reason: "one name at least is needed",
        }));
    }
    names.sort();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(Error::Transaction(TransactionError::DuplicateName {
            name: pair[0].clone(),
        })),
        None => Ok(names),
    }
}
