//! The default holder: a name of this process, for people to read in `rowlock ls`.

use crate::model::bounds::check_holder;

/// `program[pid]@host`, for people to read.
pub(super) fn this_process() -> String {
    let program = std::env::current_exe().ok();
    let program = program.as_deref().and_then(std::path::Path::file_stem);
    let program = program.map_or_else(|| "?".into(), |name| name.to_string_lossy());
    let program: String = program.chars().take(40).collect();
    let host: String = host().chars().take(60).filter(|c| *c != '\0').collect();
    let label = format!("{program}[{}]@{host}", std::process::id());
    // The limit is in bytes, and a character may have several.
    if check_holder(&label).is_ok() {
        label
    } else {
        std::process::id().to_string()
    }
}

#[cfg(unix)]
fn host() -> String {
    nix::unistd::gethostname()
        .map_or_else(|_| "?".into(), |name| name.to_string_lossy().into_owned())
}

#[cfg(not(unix))]
fn host() -> String {
    std::env::var("COMPUTERNAME").unwrap_or_else(|_| "?".into())
}
