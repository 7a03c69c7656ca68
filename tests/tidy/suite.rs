//! The tests themselves, and what runs them.

use std::collections::BTreeSet;
use std::path::Path;

use crate::{ALL, TESTS, files};

fn read(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

#[test]
fn every_contract_test_runs_on_every_engine() {
    for (path, text) in files("tests/contract") {
        if path.ends_with("main.rs") {
            continue;
        }
        assert!(text.contains("on_every_engine! {"), "{}", path.display());
        assert!(
            !text.contains("#[tokio::test") && !text.contains("#[test]"),
            "{}",
            path.display()
        );
    }
}

#[test]
fn no_test_is_ignored() {
    for (path, text) in ALL.iter().chain(&TESTS).flat_map(|below| files(below)) {
        let word = ["#[", "ignore"].concat();
        assert!(!text.contains(&word), "{}", path.display());
    }
}

/// The statements of a text that assert something.
fn asserts(text: &str) -> impl Iterator<Item = &str> {
    let asserts = text.split("assert!(").skip(1);
    asserts.map(|rest| &rest[..rest.find(";\n").unwrap_or(rest.len())])
}

/// The names that are given to times which have passed.
fn times(text: &str) -> BTreeSet<&str> {
    let lets = text.split("let ").skip(1);
    let lets = lets.filter_map(|rest| rest.split_once(';')?.0.split_once(" = "));
    let times = lets.filter(|(_, value)| value.ends_with(".elapsed()"));
    times
        .map(|(name, _)| name.trim_start_matches("mut "))
        .collect()
}

/// What `assert` says that some of these times are below, unless that is a patience, or a part of another of these
/// times.
fn bounds<'a>(assert: &'a str, times: &BTreeSet<&str>) -> Vec<&'a str> {
    let word = |c: char| c.is_alphanumeric() || c == '_' || c == '.' || c == '(' || c == ')';
    let compared = assert
        .match_indices(" < ")
        .chain(assert.match_indices(" <= "));
    let is_bound = |(at, sign): &(usize, &str)| {
        let left = &assert[..*at];
        let left = &left[left.rfind(|c| !word(c)).map_or(0, |before| before + 1)..];
        let right = &assert[at + sign.len()..];
        let right = &right[..right.find([',', '&', '|']).unwrap_or(right.len())];
        let is_time = left.ends_with(".elapsed()") || times.contains(left.trim_start_matches('('));
        let mut words = right.split(|c: char| !(c.is_alphanumeric() || c == '_'));
        is_time && !words.any(|word| word == "patience" || times.contains(word))
    };
    compared
        .filter(is_bound)
        .map(|(at, _)| &assert[..at])
        .collect()
}

/// A machine that is busy takes longer. What may be said of a time instead: CONTRIBUTING, "The tests".
#[test]
fn no_test_is_a_bound_on_the_clock() {
    let took = "let took = began.elapsed(); ";
    for (text, is_one) in [
        ("assert!(began.elapsed() < SOON);\n", true),
        ("assert!(took <= TTL, \"{took:?}\");\n", true),
        (
            "assert!(\n    is_held && took < TTL,\n    \"late\"\n);\n",
            true,
        ),
        (
            "assert!(began.elapsed() < 5 * patience(), \"never\");\n",
            false,
        ),
        ("assert!(took >= TTL && left < TTL);\n", false),
        (
            "let all = of_all.elapsed(); assert!(took < all / 4);\n",
            false,
        ),
        ("while began.elapsed() < TTL {}\n", false),
    ] {
        let text = format!("{took}{text}");
        let found = asserts(&text).any(|assert| !bounds(assert, &times(&text)).is_empty());
        assert_eq!(found, is_one, "{text}");
    }
    let mut found = Vec::new();
    for (path, text) in ALL.iter().chain(&TESTS).flat_map(|below| files(below)) {
        // Time that is paused is not the clock's.
        if path.starts_with("tests/tidy") || text.contains("start_paused = true") {
            continue;
        }
        let times = times(&text);
        for assert in asserts(&text) {
            let bounds = bounds(assert, &times).into_iter();
            found.extend(bounds.map(|bound| format!("{}: {bound} < …", path.display())));
        }
    }
    assert_eq!(found, Vec::<String>::new());
}

/// `test.sh` names what it runs, so that it can tell how long each group takes.
#[test]
fn every_test_program_is_in_a_group() {
    let script = read("test.sh");
    for folder in TESTS {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let is_program = path.join("main.rs").exists()
                || path.extension().is_some_and(|extension| extension == "rs");
            let name = path.file_stem().unwrap().to_str().unwrap();
            let program = format!("--test {name}");
            let mut runs = script.split(&program).skip(1);
            let is_run =
                runs.any(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'));
            assert!(!is_program || is_run, "test.sh runs no program {name}");
        }
    }
}

/// The checks stand in one file.
#[test]
fn the_workflow_runs_what_everybody_runs() {
    let workflow = read(".github/workflows/ci.yml");
    let steps: Vec<_> = workflow
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("- run: "))
        .collect();
    for step in [".ci/run", "./test.sh --quick"] {
        assert!(steps.contains(&step), "{steps:?}");
    }
}
