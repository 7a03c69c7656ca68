//! The documents: short where a reader begins, and no link that leads nowhere.

use std::path::{Path, PathBuf};

/// The most bytes of ARCHITECTURE, and the most words of its glossary: more is a book, and nobody begins with a book.
const BYTES: usize = 20_000;

/// The most bytes of README.
const README_BYTES: usize = 6_000;

const WORDS: usize = 25;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn architecture() -> String {
    std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap()
}

/// All documents of the project.
fn documents() -> Vec<PathBuf> {
    fn collect(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            if path.is_dir() {
                let is_ours = name != "target" && name != "node_modules" && !name.starts_with('.');
                if is_ours {
                    collect(&path, found);
                }
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    collect(root(), &mut found);
    found
}

/// The anchors of a document, as GitHub makes them from its headings.
fn anchors(text: &str) -> Vec<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let anchor = |heading: &str| {
        let heading = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
        heading
            .chars()
            .filter(kept)
            .collect::<String>()
            .replace(' ', "-")
    };
    headings.map(anchor).collect()
}

#[test]
fn the_readme_is_short() {
    let text = std::fs::read_to_string(root().join("README.md")).unwrap();
    assert!(text.len() <= README_BYTES, "{} bytes", text.len());
}

/// axum answers with 200 where a handler's error is a text alone: a layer keeps that as a success.
#[test]
fn no_handler_of_a_sample_fails_with_200() {
    let mut wrong = Vec::new();
    for path in documents() {
        let text = std::fs::read_to_string(&path).unwrap();
        let errors = ["Result<Response, String>", "Result<Response, &"];
        let is_wrong = |line: &&str| errors.iter().any(|error| line.contains(error));
        let lines = text.lines().filter(is_wrong);
        wrong.extend(lines.map(|line| format!("{}: {line}", path.display())));
    }
    assert_eq!(wrong, Vec::<String>::new());
}

#[test]
fn the_architecture_is_short() {
    let text = architecture();
    assert!(text.len() <= BYTES, "{} bytes", text.len());
    let glossary = text.split("## Glossary").nth(1).unwrap();
    let glossary = glossary.split("\n## ").next().unwrap();
    let rows = glossary.lines().filter(|line| line.starts_with("| "));
    let words = rows.count() - 2;
    assert!((1..=WORDS).contains(&words), "{words} words");
}

/// The first word of each line of the map, and the files that a line names in parentheses or before its text.
#[test]
fn the_map_names_what_there_is() {
    let text = architecture();
    let map = text
        .split("## Where a line of code belongs")
        .nth(1)
        .unwrap();
    let map = map.split("```").nth(1).unwrap();
    let mut parents: Vec<(usize, PathBuf)> = Vec::new();
    let mut missing = Vec::new();
    let mut count = 0;
    for line in map.lines() {
        let indent = line.len() - line.trim_start().len();
        // A line that goes on with the text of the one before is far to the right.
        if line.trim().is_empty() || indent > 4 {
            continue;
        }
        parents.retain(|(at, _)| *at < indent);
        let below = parents
            .last()
            .map_or_else(PathBuf::new, |(_, path)| path.clone());
        let names = line.trim().split("   ").next().unwrap();
        for name in names.split([' ', ',']).filter(|name| !name.is_empty()) {
            let is_path = name.ends_with('/') || Path::new(name).extension().is_some();
            if !is_path || name.contains('{') {
                continue;
            }
            count += 1;
            let path = below.join(name);
            if !root().join(&path).exists() {
                missing.push(path.clone());
            }
            if name.ends_with('/') && names.split_whitespace().next() == Some(name) {
                parents.push((indent, path));
            }
        }
    }
    assert!(count > 20, "{count} names only");
    assert!(
        missing.is_empty(),
        "the map names what is not there: {missing:?}"
    );
}

#[test]
fn every_link_leads_somewhere() {
    let mut dead = Vec::new();
    let mut count = 0;
    for path in documents() {
        let text = std::fs::read_to_string(&path).unwrap();
        for link in text.split("](").skip(1) {
            let link = link.split(')').next().unwrap();
            let is_ours = !link.contains("://") && !link.contains("::") && !link.contains(' ');
            let looks_like_one =
                link.contains(".md") || link.contains('/') || link.starts_with('#');
            if !is_ours || !looks_like_one || link.starts_with("mailto:") {
                continue;
            }
            count += 1;
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() {
                path.clone()
            } else {
                path.parent().unwrap().join(file)
            };
            let is_there = target.exists()
                && (anchor.is_empty() || {
                    let text = std::fs::read_to_string(&target).unwrap_or_default();
                    anchors(&text).iter().any(|known| known == anchor)
                });
            if !is_there {
                dead.push(format!(
                    "{}: {link}",
                    path.strip_prefix(root()).unwrap().display()
                ));
            }
        }
    }
    assert!(count > 50, "{count} links only");
    assert!(dead.is_empty(), "dead links:\n{}", dead.join("\n"));
}

/// A file of the code, or of the tests, that a document names in backticks. (`*` and `<engine>` stand for many.)
#[test]
fn every_file_that_a_document_names_exists() {
    let (mut missing, mut count) = (Vec::new(), 0);
    for path in documents() {
        let text = std::fs::read_to_string(&path).unwrap();
        for name in text.split('`').skip(1).step_by(2) {
            let is_code = Path::new(name).extension().is_some_and(|end| end == "rs");
            let is_file = is_code && name.contains('/');
            if !is_file || name.contains(['*', '<', ' ']) {
                continue;
            }
            count += 1;
            if !["", "src"]
                .iter()
                .any(|below| root().join(below).join(name).exists())
            {
                let document = path.strip_prefix(root()).unwrap().display();
                missing.push(format!("{document}: {name}"));
            }
        }
    }
    assert!(count > 20, "{count} names only");
    assert_eq!(missing, Vec::<String>::new());
}

/// The map of the code names files without their folders.
#[test]
fn every_file_of_the_map_exists() {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let is_of_a_name = |letter: char| letter.is_ascii_alphanumeric() || "_.".contains(letter);
    let words = text.split(|letter| !is_of_a_name(letter));
    let is_code = |word: &&str| Path::new(word).extension().is_some_and(|end| end == "rs");
    let named: Vec<_> = words.filter(is_code).collect();
    let crates = ["src", "rowlock-http", "rowlock-console", "rowlock-cli"];
    let there: Vec<_> = crates
        .iter()
        .flat_map(|below| crate::files(below))
        .collect();
    let is_there = |name: &str| there.iter().any(|(path, _)| path.ends_with(name));
    let missing: Vec<_> = named.iter().filter(|name| !is_there(name)).collect();
    assert!(named.len() > 20, "{named:?}");
    assert!(missing.is_empty(), "{missing:?}");
}

/// The last column of a table of schedules.
#[test]
fn every_schedule_names_a_test_that_exists() {
    let tests = ["src", "tests"]
        .iter()
        .flat_map(|below| crate::files(below));
    let tests: String = tests.map(|(_, text)| text).collect();
    let mut count = 0;
    for path in documents() {
        let text = std::fs::read_to_string(&path).unwrap();
        for table in text.split("| schedule | what comes of it |").skip(1) {
            let rows = table
                .lines()
                .skip(2)
                .take_while(|line| line.starts_with('|'));
            for row in rows {
                let test = row.trim_end_matches(" |").rsplit(" | ").next().unwrap();
                let name = test.trim_matches('`');
                let is_there = tests.contains(&format!("fn {name}"))
                    || tests.contains(&format!("(\"{name}\", "));
                assert!(is_there, "{}: no test is called {test}", path.display());
                count += 1;
            }
        }
    }
    assert!(count > 30, "{count} schedules only");
}

/// Tables and the code of examples may be longer.
#[test]
fn no_line_of_a_comment_is_too_long_to_read() {
    const MOST: usize = 119;
    let mut long = Vec::new();
    for (path, text) in crate::ALL
        .iter()
        .chain(&crate::TESTS)
        .flat_map(|below| crate::files(below))
    {
        let mut is_code = false;
        for (number, line) in text.lines().enumerate() {
            let Some(comment) = line.trim_start().strip_prefix("//") else {
                is_code = false;
                continue;
            };
            let comment = comment.trim_start_matches(['/', '!']).trim_start();
            if comment.starts_with("```") {
                is_code = !is_code;
            }
            let is_table = comment.starts_with('|');
            let breaks = comment.contains(' ');
            if !is_code && !is_table && breaks && line.chars().count() > MOST {
                long.push(format!("{}:{}", path.display(), number + 1));
            }
        }
    }
    assert_eq!(long, Vec::<String>::new());
}

/// Whether a line of a document is one link, an image, or the address of a link, which cannot be broken.
fn is_one_link(line: &str) -> bool {
    let line = line.trim();
    let text = line.strip_prefix('!').unwrap_or(line);
    let address = ["](", "]: "].iter().find_map(|mark| text.split_once(mark));
    text.starts_with('[') && address.is_some_and(|(_, address)| !address.contains(' '))
}

/// The lines of prose of a document, with their numbers: neither code nor tables.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    text.lines().enumerate().filter_map(move |(number, line)| {
        let start = line.trim_start();
        let is_fence = start.starts_with("```");
        is_code ^= is_fence;
        let is_prose = !is_code && !is_fence && !start.starts_with('|');
        is_prose.then_some((number + 1, line))
    })
}

#[test]
fn no_line_of_a_document_is_too_long_to_read() {
    const MOST: usize = 160;
    let (mut long, mut count) = (Vec::new(), 0);
    for path in documents() {
        let text = std::fs::read_to_string(&path).unwrap();
        let document = path.strip_prefix(root()).unwrap().display();
        for (number, line) in prose(&text) {
            count += 1;
            let length = line.chars().count();
            if length > MOST && !is_one_link(line) {
                long.push(format!("{document}:{number}: {length} characters"));
            }
        }
    }
    assert!(count > 1000, "{count} lines only");
    assert!(
        long.is_empty(),
        "break these lines, or make them shorter:\n{}",
        long.join("\n")
    );
}

#[test]
fn every_page_begins_with_the_question_that_it_answers() {
    let (mut without, mut count) = (Vec::new(), 0);
    let docs = root().join("docs");
    for path in documents() {
        if path.parent() != Some(&docs) {
            continue;
        }
        count += 1;
        let text = std::fs::read_to_string(&path).unwrap();
        let first: Vec<&str> = prose(&text)
            .map(|(_, line)| line)
            .skip_while(|line| line.starts_with('#') || line.is_empty())
            .take_while(|line| !line.is_empty())
            .collect();
        if !first.join(" ").contains('?') {
            without.push(path.file_name().unwrap().to_owned());
        }
    }
    assert!(count > 8, "{count} pages only");
    assert!(without.is_empty(), "no question at the top of {without:?}");
}
