//! Imports make no circle: neither between rooms nor between the files of a room.
//!
//! A name that a `mod.rs` only passes on (`pub use`) counts as an import of the file that has it. A module and its own
//! children may know each other. Tests may use everything.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};
use syn::{Attribute, Item, ItemMod, ItemUse, Path, UseTree, Visibility};

use super::{PUBLISHED, files};

/// A module, or an item in it, by its path from the root of its crate.
type Name = Vec<String>;

/// What a file imports.
#[derive(Default)]
struct Imports {
    /// The module of the file, and below it the inline modules around the current item.
    here: Name,
    /// The modules that it declares.
    children: BTreeSet<String>,
    uses: BTreeSet<Name>,
    /// The names that it passes on, and where they are.
    passes_on: BTreeMap<String, Name>,
}

fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let text = |list: &syn::MetaList| list.tokens.to_string();
        attribute.path().is_ident("cfg")
            && attribute
                .meta
                .require_list()
                .is_ok_and(|list| text(list).contains("test"))
    })
}

impl Imports {
    /// The name from the root of the crate. `None`: it is of another crate, or of the file itself.
    fn resolved(&self, path: &[String]) -> Option<Name> {
        match path.first()?.as_str() {
            "crate" => Some(path[1..].to_vec()),
            "self" => Some([&self.here, &path[1..]].concat()),
            "super" => {
                let ups = path.iter().take_while(|word| *word == "super").count();
                let base = self.here.len().checked_sub(ups)?;
                Some([&self.here[..base], &path[ups..]].concat())
            }
            child if self.children.contains(child) => Some([&self.here, path].concat()),
            _ => None,
        }
    }

    fn tree(&mut self, prefix: &[String], tree: &UseTree, passes_on: bool) {
        let (path, name) = match tree {
            UseTree::Path(path) => {
                let prefix = [prefix, &[path.ident.to_string()]].concat();
                return self.tree(&prefix, &path.tree, passes_on);
            }
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.tree(prefix, tree, passes_on);
                }
                return;
            }
            UseTree::Name(name) => (name.ident.to_string(), name.ident.to_string()),
            UseTree::Rename(rename) => (rename.ident.to_string(), rename.rename.to_string()),
            UseTree::Glob(_) => (String::from("*"), String::from("*")),
        };
        let path = [prefix, &[path]].concat();
        let Some(resolved) = self.resolved(&path) else {
            return;
        };
        if passes_on {
            self.passes_on.insert(name, resolved);
        } else {
            self.uses.insert(resolved);
        }
    }
}

impl<'ast> Visit<'ast> for Imports {
    fn visit_item(&mut self, item: &'ast Item) {
        let attributes = match item {
            Item::Mod(item) => &item.attrs,
            Item::Fn(item) => &item.attrs,
            Item::Impl(item) => &item.attrs,
            Item::Use(item) => &item.attrs,
            _ => return visit::visit_item(self, item),
        };
        if !is_for_tests(attributes) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        self.here.push(item.ident.to_string());
        let children = std::mem::take(&mut self.children);
        visit::visit_item_mod(self, item);
        self.children = children;
        self.here.pop();
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        let passes_on = !matches!(item.vis, Visibility::Inherited);
        self.tree(&[], &item.tree, passes_on);
    }

    fn visit_path(&mut self, path: &'ast Path) {
        let words = path.segments.iter().map(|word| word.ident.to_string());
        let words: Name = words.collect();
        if words.len() > 1
            && let Some(resolved) = self.resolved(&words)
        {
            self.uses.insert(resolved);
        }
        visit::visit_path(self, path);
    }
}

/// The files of a crate, by their modules, each with the modules that it imports from.
fn graph(below: &str) -> BTreeMap<Name, BTreeSet<Name>> {
    let mut all: BTreeMap<Name, Imports> = BTreeMap::new();
    for (path, text) in files(below) {
        let path = path.strip_prefix(below).unwrap().with_extension("");
        let words = path.iter().map(|word| word.to_str().unwrap().to_owned());
        let mut here: Name = words.collect();
        if here.iter().any(|word| word.ends_with("tests")) {
            continue;
        }
        here.pop_if(|word| ["mod", "lib", "main"].contains(&word.as_str()));
        let file = syn::parse_file(&text).unwrap();
        let mut imports = Imports {
            here: here.clone(),
            ..Imports::default()
        };
        for item in &file.items {
            if let Item::Mod(item) = item {
                imports.children.insert(item.ident.to_string());
            }
        }
        imports.visit_file(&file);
        all.insert(here, imports);
    }
    // The module in which the item is, however many others pass it on.
    let home = |name: &Name| -> Name {
        let mut name = name.clone();
        for _ in 0..9 {
            let module = (0..=name.len())
                .rev()
                .find(|n| all.contains_key(&name[..*n]));
            let at = module.unwrap_or(0);
            let next = name
                .get(at)
                .and_then(|item| all[&name[..at]].passes_on.get(item));
            match next {
                Some(next) => name = [next, &name[at + 1..]].concat(),
                None => return name[..at].to_vec(),
            }
        }
        name
    };
    let edges = |(module, imports): (&Name, &Imports)| {
        let homes = imports.uses.iter().map(home);
        let others = homes.filter(|home| !home.starts_with(module) && !module.starts_with(home));
        (module.clone(), others.collect())
    };
    all.iter().map(edges).collect()
}

/// The modules that can be reached from one, itself only over others.
fn reached<'a>(graph: &'a BTreeMap<Name, BTreeSet<Name>>, from: &'a Name) -> BTreeSet<&'a Name> {
    let mut found = BTreeSet::new();
    let mut open: Vec<&Name> = graph[from].iter().collect();
    while let Some(module) = open.pop() {
        if found.insert(module) {
            open.extend(&graph[module]);
        }
    }
    found
}

#[test]
fn imports_make_no_circle() {
    let mut circles = Vec::new();
    for below in PUBLISHED {
        let graph = graph(below);
        let ways: BTreeMap<_, _> = graph.keys().map(|of| (of, reached(&graph, of))).collect();
        for (module, reached) in &ways {
            if !reached.contains(module) {
                continue;
            }
            for next in &graph[*module] {
                if ways[next].contains(module) {
                    let (from, to) = (module.join("::"), next.join("::"));
                    circles.push(format!("{below}: {from} -> {to}"));
                }
            }
        }
    }
    assert_eq!(circles, Vec::<String>::new());
}
