//! A folder for one sale, removed at its end.

use std::path::{Path, PathBuf};

#[derive(Debug)]
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> std::io::Result<Self> {
        let name = format!("rowlock-flash-sale-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        // A killed process of the same number may have left one.
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path)?;
        Ok(Self(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
