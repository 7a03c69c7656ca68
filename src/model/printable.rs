//! Texts in messages that others have written: holders, servers, other programs.

use std::fmt;

/// A writer that escapes what a terminal would obey, and what a log would show as another line.
pub(crate) struct Printable<W>(pub(crate) W);

impl<W: fmt::Write> fmt::Write for Printable<W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for part in text.split_inclusive(is_obeyed) {
            let last = part.chars().next_back().filter(|last| is_obeyed(*last));
            let plain = part.len() - last.map_or(0, char::len_utf8);
            self.0.write_str(&part[..plain])?;
            for c in last.into_iter().flat_map(char::escape_debug) {
                self.0.write_char(c)?;
            }
        }
        Ok(())
    }
}

/// Control characters, ends of lines, and marks that turn the direction of letters.
fn is_obeyed(c: char) -> bool {
    let turns =
        matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || turns
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;

    #[test]
    fn only_what_is_obeyed_is_escaped() {
        let mut line = Printable(String::new());
        write!(
            line,
            "a \"b\" \\ é e\u{301}: \r\n\x1b[0m\u{9b}\u{2028}\u{202e}c"
        )
        .unwrap();
        assert_eq!(
            line.0,
            "a \"b\" \\ é e\u{301}: \\r\\n\\u{1b}[0m\\u{9b}\\u{2028}\\u{202e}c"
        );
    }
}
