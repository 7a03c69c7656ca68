//! What the server's log tells of rowlock's sessions.

/// A statement that the server has run, and its parameters as texts; none for NULL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Executed {
    pub(super) sql: String,
    pub(super) parameters: Vec<Option<String>>,
}

/// The executed statements in a log. Their further lines begin with a tab, and their parameters come next. (The log
/// also has the parameters of each bind.)
pub(super) fn executed(log: &str) -> Vec<Executed> {
    let mut found: Vec<Executed> = Vec::new();
    let (mut in_sql, mut has_parameters) = (false, false);
    for line in log.lines() {
        if let Some(more) = line.strip_prefix('\t') {
            if let (true, Some(last)) = (in_sql, found.last_mut()) {
                last.sql.push('\n');
                last.sql.push_str(more);
            }
        } else if let Some((_, statement)) = line.split_once(" ms  execute ") {
            let sql = statement.split_once(": ").map_or("", |(_, sql)| sql);
            found.push(Executed {
                sql: sql.to_owned(),
                parameters: Vec::new(),
            });
            (in_sql, has_parameters) = (true, true);
        } else {
            let list = line.split_once("arameters: $1 = ");
            if let (true, Some((_, list)), Some(last)) = (has_parameters, list, found.last_mut()) {
                last.parameters = parameters(list);
            }
            (in_sql, has_parameters) = (false, false);
        }
    }
    found
}

/// `'{a,b}', $2 = NULL, $3 = 'it''s'`
fn parameters(list: &str) -> Vec<Option<String>> {
    let mut found = Vec::new();
    let mut rest = list;
    loop {
        let value = if let Some(quoted) = rest.strip_prefix('\'') {
            let doubled = quoted.replace("''", "\u{1}\u{1}");
            let end = doubled.find('\'').unwrap_or(doubled.len());
            rest = quoted.get(end + 1..).unwrap_or_default();
            Some(doubled[..end].replace("\u{1}\u{1}", "'"))
        } else {
            rest = rest.strip_prefix("NULL").unwrap_or_default();
            None
        };
        found.push(value);
        match rest
            .strip_prefix(", $")
            .and_then(|next| next.split_once(" = "))
        {
            Some((_, next)) => rest = next,
            None => return found,
        }
    }
}

/// The elements of an array without commas in them.
pub(super) fn elements(array: &str) -> Vec<&str> {
    let inner = array
        .strip_prefix('{')
        .and_then(|array| array.strip_suffix('}'));
    inner
        .filter(|inner| !inner.is_empty())
        .map_or_else(Vec::new, |inner| inner.split(',').collect())
}

/// The settings that rowlock gives its sessions, as SET commands.
pub(super) fn settings(log: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for line in log.lines() {
        let Some((_, commands)) = line.split_once(" ms  statement: SET ") else {
            continue;
        };
        for command in commands.split(';').map(str::trim) {
            // What not every server knows is set by a function.
            let by_function = command.strip_prefix("SELECT set_config('");
            let by_function = by_function.and_then(|rest| rest.split_once("', '"));
            let by_function = by_function.and_then(|(name, rest)| {
                let (value, _) = rest.split_once('\'')?;
                Some(format!("{name} = {value}"))
            });
            let command = by_function.unwrap_or_else(|| command.trim_start_matches("SET ").into());
            let command = format!("SET {command}");
            if !found.contains(&command) {
                found.push(command);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_has_the_statements_and_their_parameters() {
        let log = "2026 [7] LOG:  duration: 0.1 ms  execute s_1: \n\tUPDATE x\n\tSET y = $1::bytea[], z = $2\n\
                   2026 [7] DETAIL:  parameters: $1 = '{\"\\\\x61\",\"\\\\x62\"}', $2 = NULL, $3 = 'it''s'\n\
                   2026 [7] LOG:  duration: 0.2 ms  bind s_1: UPDATE x\n\tSET more\n\
                   2026 [7] DETAIL:  parameters: $1 = 'of the bind'\n";
        let found = executed(log);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].sql, "\nUPDATE x\nSET y = $1::bytea[], z = $2");
        let array = "{\"\\\\x61\",\"\\\\x62\"}".to_owned();
        assert_eq!(
            found[0].parameters,
            [Some(array), None, Some("it's".to_owned())]
        );
        assert_eq!(elements("{\"a\",\"b\"}").len(), 2);
    }

    #[test]
    fn a_log_has_the_settings_of_the_sessions() {
        let log = "2026 [7] LOG:  duration: 0.1 ms  statement: SET jit = off; SET enable_seqscan = off; \
                   SELECT set_config('enable_memoize', 'off', false) WHERE true\n\
                   2026 [8] LOG:  duration: 0.1 ms  statement: SET jit = off; SET enable_seqscan = off\n\
                   2026 [8] LOG:  duration: 0.1 ms  statement: BEGIN; SET LOCAL x = 'y'\n";
        let found = ["jit", "enable_seqscan", "enable_memoize"];
        assert_eq!(settings(log), found.map(|name| format!("SET {name} = off")));
    }
}
