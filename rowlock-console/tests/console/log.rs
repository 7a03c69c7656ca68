//! The log lines of the console.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, OnceLock};

use tracing_subscriber::fmt::MakeWriter;

#[derive(Debug, Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// From now on the log of this process is kept.
fn lines() -> &'static Lines {
    static LINES: OnceLock<Lines> = OnceLock::new();
    LINES.get_or_init(|| {
        let lines = Lines::default();
        let log = tracing_subscriber::fmt().with_writer(lines.clone());
        log.with_ansi(false).init();
        lines
    })
}

/// Begins to keep the log.
pub(crate) fn keep() {
    lines();
}

/// The lines of the console that have this text.
pub(crate) fn with(text: &str) -> Vec<String> {
    let all = lines().0.lock().unwrap().clone();
    let all = String::from_utf8(all).unwrap();
    let ours = all.lines().filter(|line| line.contains("rowlock::console"));
    ours.filter(|line| line.contains(text))
        .map(str::to_owned)
        .collect()
}
