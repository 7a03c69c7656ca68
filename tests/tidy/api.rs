//! What the crate `rowlock` offers, as a list: each growth of it is a line in a diff.

use std::collections::BTreeSet;
use std::path::Path;

use syn::{Attribute, Fields, ImplItem, Item, TraitItem, Type, UseTree, Visibility};

use super::files;

/// The most types, methods and variants of errors: a growth has to be wanted.
const MOST_TYPES: usize = 75;
const MOST_METHODS: usize = 240;
const MOST_ERRORS: usize = 24;

fn leaves(tree: &UseTree, names: &mut BTreeSet<String>) {
    match tree {
        UseTree::Path(path) => leaves(&path.tree, names),
        UseTree::Group(group) => group.items.iter().for_each(|tree| leaves(tree, names)),
        UseTree::Name(name) => names.extend([name.ident.to_string()]),
        UseTree::Rename(name) => names.extend([name.rename.to_string()]),
        UseTree::Glob(_) => {}
    }
}

fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

fn is_hidden(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let list = attribute.meta.require_list();
        attribute.path().is_ident("doc")
            && list.is_ok_and(|list| list.tokens.to_string() == "hidden")
    })
}

/// The names that `lib.rs` passes on, itself or in its public modules.
fn exported(items: &[Item], names: &mut BTreeSet<String>) {
    for item in items {
        match item {
            Item::Use(item) if is_public(&item.vis) && !is_hidden(&item.attrs) => {
                leaves(&item.tree, names);
            }
            Item::Mod(item) if is_public(&item.vis) => {
                let inside = item.content.iter();
                inside.for_each(|(_, items)| exported(items, names));
            }
            _ => {}
        }
    }
}

fn self_type(of: &Type) -> Option<String> {
    let Type::Path(of) = of else { return None };
    of.path.segments.last().map(|word| word.ident.to_string())
}

/// One line for each item: its kind and its name.
fn offered(item: &Item, names: &BTreeSet<String>, found: &mut BTreeSet<String>) {
    let mut add = |kind: &str, name: String| {
        found.insert(format!("{kind} {name}"));
    };
    match item {
        Item::Struct(item) if is_public(&item.vis) && names.contains(&item.ident.to_string()) => {
            let name = &item.ident;
            add("struct", name.to_string());
            if let Fields::Named(fields) = &item.fields {
                for field in fields.named.iter().filter(|field| is_public(&field.vis)) {
                    add(
                        "field",
                        format!("{name}::{}", field.ident.as_ref().unwrap()),
                    );
                }
            }
        }
        Item::Enum(item) if is_public(&item.vis) && names.contains(&item.ident.to_string()) => {
            add("enum", item.ident.to_string());
            for variant in &item.variants {
                add("variant", format!("{}::{}", item.ident, variant.ident));
            }
        }
        Item::Trait(item) if is_public(&item.vis) && names.contains(&item.ident.to_string()) => {
            add("trait", item.ident.to_string());
            for method in &item.items {
                if let TraitItem::Fn(method) = method
                    && !is_hidden(&method.attrs)
                {
                    add("method", format!("{}::{}", item.ident, method.sig.ident));
                }
            }
        }
        Item::Fn(item) if is_public(&item.vis) && names.contains(&item.sig.ident.to_string()) => {
            add("function", item.sig.ident.to_string());
        }
        Item::Impl(item) if item.trait_.is_none() => {
            let Some(name) = self_type(&item.self_ty).filter(|name| names.contains(name)) else {
                return;
            };
            for method in &item.items {
                if let ImplItem::Fn(method) = method
                    && is_public(&method.vis)
                    && !is_hidden(&method.attrs)
                {
                    add("method", format!("{name}::{}", method.sig.ident));
                }
            }
        }
        _ => {}
    }
}

#[test]
fn what_the_crate_offers_is_written_down() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let lib = std::fs::read_to_string(root.join("src/lib.rs")).unwrap();
    let mut names = BTreeSet::new();
    exported(&syn::parse_file(&lib).unwrap().items, &mut names);
    let mut found = BTreeSet::new();
    for (path, text) in files("src") {
        // What the attributes stand for is for them.
        if path.starts_with("src/attributes") {
            continue;
        }
        let file = syn::parse_file(&text).unwrap();
        file.items
            .iter()
            .for_each(|item| offered(item, &names, &mut found));
    }
    let count = |kinds: &[&str]| {
        let is_of = |line: &&String| kinds.iter().any(|kind| line.starts_with(kind));
        found.iter().filter(is_of).count()
    };
    let counts = (
        count(&["struct ", "enum ", "trait "]),
        count(&["method ", "function "]),
        count(&["variant Error::"]),
    );
    let most = (MOST_TYPES, MOST_METHODS, MOST_ERRORS);
    assert!(
        counts.0 <= most.0 && counts.1 <= most.1 && counts.2 <= most.2,
        "{counts:?}"
    );
    let now = found.into_iter().collect::<Vec<_>>().join("\n") + "\n";
    let written = std::fs::read_to_string(root.join("docs/API.txt")).unwrap_or_default();
    if now != written {
        let copy = Path::new(env!("CARGO_TARGET_TMPDIR")).join("API.txt");
        std::fs::write(&copy, now).unwrap();
        panic!(
            "docs/API.txt is not what src offers: compare it with {}, and copy that",
            copy.display()
        );
    }
}
