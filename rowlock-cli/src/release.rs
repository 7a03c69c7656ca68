//! `rowlock release` and `rowlock forget`: an operator frees a name, or removes its row.

use rowlock::{Error, LockInfo, Name, Rowlock, SchemaError};

use crate::out::say;
use crate::{Failure, database, show};

/// Frees the name, and prints who held it.
pub(crate) async fn release(rowlock: &Rowlock, name: &Name) -> Result<(), Failure> {
    // `force_release` repairs a damaged row, but cannot return it, and returns one permit only.
    let seen = rowlock.admin().holders(name.clone()).await;
    let freed = match rowlock.admin().force_release(name.clone()).await {
        Ok(freed) => freed,
        Err(error) => {
            // It has freed what it could.
            let left = rowlock.admin().holders(name.clone()).await?;
            let is_left = |held: &LockInfo| left.iter().any(|left| left.grant_id == held.grant_id);
            let mut seen = seen.unwrap_or_default();
            seen.retain(|held| !is_left(held));
            show::print_released(name, &seen)?;
            return Err(error.into());
        }
    };
    if freed.is_none() && matches!(seen, Err(Error::Schema(SchemaError::Corrupt { .. }))) {
        return say!("released {name:?}: its row was damaged, so its holder is not known");
    }
    let all = seen.unwrap_or_default();
    let all = if all.len() > 1 {
        &all
    } else {
        freed.as_slice()
    };
    if all.is_empty() {
        say!("nobody held {name:?}")?;
        database::tell_where(rowlock);
    }
    show::print_released(name, all)
}

/// Removes the row of a name that nobody uses.
pub(crate) async fn forget(rowlock: &Rowlock, name: &Name) -> Result<(), Failure> {
    if rowlock.admin().forget(name.clone()).await? {
        return say!("forgot {name:?}: it may be used for anything now");
    }
    say!("there is nothing to forget: {name:?} has no row")?;
    database::tell_where(rowlock);
    Ok(())
}
