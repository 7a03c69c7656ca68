//! Who has started this command.

use nix::unistd::{User, gethostname, getuid};

pub(crate) fn user() -> String {
    let user = User::from_uid(getuid()).ok().flatten();
    user.map_or_else(|| format!("uid {}", getuid()), |user| user.name)
}

/// The user, and the machine: for people on other machines.
pub(crate) fn user_at_host() -> String {
    let host = gethostname().unwrap_or_default();
    format!("{}@{}", user(), host.to_string_lossy())
}
