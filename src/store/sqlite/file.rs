//! The file: which one a connection has open, and under which name.
//!
//! SQLite finds the log of a file (`-wal`, `-journal`) by the file's name. Who opens one file by two names has two
//! logs, and two writers that do not see each other (<https://sqlite.org/howtocorrupt.html>, section 2.5). SQLite
//! resolves symbolic links. It does not know of hard links, nor of a file that is mounted alone, as containers have it
//! (`-v /srv/app.db:/data/app.db`). Both are refused. Whoever has opened the file before it got its second name may go
//! on: the one who comes by the second name is refused.
//!
//! A file that was removed or replaced (by a restore) stays open. So each verb first looks whether the name still
//! leads to the file.

use std::fs::Metadata;
use std::path::Path;

use crate::model::FaultKind;
use crate::store::verbs::fault::Fault;

/// What tells one file of this machine from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileId(u64, u64);

/// Whether this system tells one file from another.
pub(super) const CAN_TELL: bool = cfg!(unix);

pub(super) const REPLACED: &str = "the file was removed or replaced while it was open";

/// The file that has this name now. `None`: there is none, or the system does not tell.
pub(super) fn id(path: &Path) -> Option<FileId> {
    std::fs::metadata(path).ok().and_then(|file| of(&file))
}

#[cfg(unix)]
#[expect(clippy::unnecessary_wraps, reason = "not every system tells")]
fn of(file: &Metadata) -> Option<FileId> {
    use std::os::unix::fs::MetadataExt;
    Some(FileId(file.dev(), file.ino()))
}

#[cfg(not(unix))]
fn of(_: &Metadata) -> Option<FileId> {
    None
}

/// Refuses a file that has two names.
pub(super) fn check_names(path: &Path) -> Result<(), Fault> {
    let why = if is_linked(path) {
        "the file has another name, a hard link: SQLite would keep a log for each name, and the two would not see each other. \
         Remove one of the names"
    } else if is_mounted_alone(path) {
        "the file is mounted alone, without its folder: SQLite's log beside it (-wal) is not the one that is beside its other name. \
         Mount the folder"
    } else {
        return Ok(());
    };
    Err(Fault::said(FaultKind::TwoNames, why))
}

#[cfg(unix)]
fn is_linked(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).is_ok_and(|file| file.nlink() > 1)
}

#[cfg(not(unix))]
fn is_linked(_: &Path) -> bool {
    false
}

/// Linux lists the mounts of a process (`proc_pid_mountinfo(5)`): the fifth field is where a mount is, with spaces and
/// backslashes in octal.
fn is_mounted_alone(path: &Path) -> bool {
    let (Ok(path), Ok(mounts)) = (
        std::fs::canonicalize(path),
        std::fs::read_to_string("/proc/self/mountinfo"),
    ) else {
        return false;
    };
    let path = path.to_string_lossy();
    let mut places = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    places.any(|place| unescaped(place) == path)
}

fn unescaped(place: &str) -> String {
    let octal = [
        ("\\040", " "),
        ("\\011", "\t"),
        ("\\012", "\n"),
        ("\\134", "\\"),
    ];
    octal
        .iter()
        .fold(place.to_owned(), |place, (code, letter)| {
            place.replace(code, letter)
        })
}
