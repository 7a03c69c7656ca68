//! Names of types: a noun, and one type for each name.

use std::collections::BTreeMap;

use syn::Item;

use super::files;

/// Two halves of one type, for a build with the feature `metrics` and without it.
const HALVES: [&str; 2] = ["InQueue", "Since"];

/// An engine's own type with the same part in each.
const OF_ENGINES: [&str; 3] = ["Rows", "MySql", "OwnConnection"];

/// Callers know these, and read them with their method or their enum.
const FACE: [&str; 9] = [
    "Begun",
    "Blocked",
    "Cleaned",
    "Held",
    "Locked",
    "Reconciled",
    "Refused",
    "Submitted",
    "Unfinished",
];

/// Each type that `src` declares, outside of tests, with its files.
fn declared() -> BTreeMap<String, Vec<String>> {
    let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (path, text) in files("src") {
        let is_for_tests = |word: &std::ffi::OsStr| word.to_str().unwrap().contains("tests");
        if path.iter().any(is_for_tests) {
            continue;
        }
        for item in syn::parse_file(&text).unwrap().items {
            let name = match item {
                Item::Enum(item) => item.ident,
                Item::Struct(item) => item.ident,
                Item::Trait(item) => item.ident,
                Item::Type(item) => item.ident,
                _ => continue,
            };
            let path = path.display().to_string();
            all.entry(name.to_string()).or_default().push(path);
        }
    }
    all
}

#[test]
fn no_name_is_that_of_two_types() {
    let mut twice = declared();
    twice.retain(|name, paths| {
        let is_known = [&HALVES[..], &OF_ENGINES].concat().contains(&name.as_str());
        paths.len() > 1 && !is_known
    });
    assert_eq!(twice, BTreeMap::new());
}

#[test]
fn no_type_is_a_bare_participle() {
    const IRREGULAR: [&str; 12] = [
        "Begun", "Found", "Given", "Heard", "Held", "Kept", "Known", "Lost", "Seen", "Shown",
        "Taken", "Told",
    ];
    let is_participle = |name: &str| {
        let one_word = name.chars().skip(1).all(|c| c.is_ascii_lowercase());
        one_word && (name.ends_with("ed") || IRREGULAR.contains(&name))
    };
    let mut found: Vec<String> = declared().into_keys().collect();
    found.retain(|name| is_participle(name) && !FACE.contains(&name.as_str()));
    assert_eq!(found, Vec::<String>::new());
}
