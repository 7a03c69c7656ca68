//! The command's own file is replaced, or goes away, while it waits: an upgrade.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::shell::{Shell, code, stderr, stdout, wait};

/// What becomes of the file.
type Upgrade = fn(&Path);

const UPGRADES: [(&str, Upgrade); 3] = [
    ("another one has its name", |file| {
        let other = file.with_extension("new");
        std::fs::write(&other, "#!/bin/sh\necho another program\n").unwrap();
        std::fs::set_permissions(&other, std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::rename(other, file).unwrap();
    }),
    ("it is removed", |file| std::fs::remove_file(file).unwrap()),
    ("its folder has another name", |file| {
        let folder = file.parent().unwrap();
        std::fs::rename(folder, folder.with_extension("old")).unwrap();
    }),
];

#[test]
fn a_command_that_waits_while_rowlock_is_upgraded_is_run() {
    for (what, upgrade) in UPGRADES {
        let shell = Shell::new();
        let go = shell.fifo("go");
        let folder = shell.dir.path().join("bin");
        std::fs::create_dir(&folder).unwrap();
        let file = folder.join("rowlock");
        std::fs::copy(env!("CARGO_BIN_EXE_rowlock"), &file).unwrap();
        let holder = shell.start(&["a"], "echo up; read line < go");
        let waiter = Command::new(&file)
            .args(["run", "a", "--", "echo", "ran"])
            .current_dir(shell.dir.path())
            .env_remove("ROWLOCK_URL")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        wait("it is in the queue", || shell.has_waiter());
        upgrade(&file);
        std::fs::write(&go, "go\n").unwrap();
        assert_eq!(holder.end().0, 0);
        let output = waiter.wait_with_output().unwrap();
        let said = (code(&output), stdout(&output), stderr(&output));
        assert_eq!(said, (0, "ran\n".into(), String::new()), "{what}");
    }
}
