//! Which files of a crate import which others.
//!
//! Owns: the reading of a crate's files and the resolution of the paths in them: `crate::`, `super::`, `self::`, paths
//! that begin with a child module or with a name from a `use`, and names that another module exports again, which count
//! as imports of the file that defines them. Does not own: what may import what (`floors`). It does not find paths
//! inside of macros, nor methods of types that a file uses without naming them. Code for tests does not count.

use std::collections::{BTreeMap, BTreeSet};
use syn::visit::Visit;
use syn::{Attribute, Item, UseTree};

/// A module's place below the root of the crate.
type Place = Vec<String>;

/// The declarations of one module.
#[derive(Default)]
struct Module {
    file: String,
    /// Names that `use` brings in, with the paths that they stand for as written.
    uses: BTreeMap<String, Place>,
    /// Modules all of whose names are brought in.
    globs: Vec<Place>,
    /// Paths in its code, as written.
    paths: BTreeSet<Place>,
}

/// For each file the files that its code names; `files` are paths below `src` with their text.
///
/// Errors: the file that is no Rust.
pub fn read<'a>(files: &BTreeMap<&'a str, &'a str>) -> Result<BTreeMap<&'a str, BTreeSet<&'a str>>, String> {
    let mut modules = BTreeMap::new();
    for (file, text) in files {
        let parsed = syn::parse_file(text).map_err(|e| format!("{file}: {e}"))?;
        gather(&mut modules, file, place_of(file), &parsed.items);
    }
    let mut all: BTreeMap<&str, BTreeSet<&str>> = files.keys().map(|file| (*file, BTreeSet::new())).collect();
    for (place, module) in &modules {
        let (file, _) = files.get_key_value(module.file.as_str()).ok_or("a module without a file")?;
        let named = module.uses.values().chain(&module.globs).chain(&module.paths);
        let targets = named.filter_map(|path| defining(&modules, place, path, 0));
        let targets = targets.filter_map(|target| files.get_key_value(target).map(|(name, _)| *name));
        all.entry(*file).or_default().extend(targets.filter(|target| target != file));
    }
    Ok(all)
}

/// `a/b.rs` is `a::b`; the root of the crate has no name.
fn place_of(file: &str) -> Place {
    let path = file.trim_end_matches(".rs");
    let path = path.strip_suffix("/mod").unwrap_or(path);
    if path == "lib" || path == "main" { Vec::new() } else { path.split('/').map(str::to_string).collect() }
}

fn is_for_tests(attrs: &[Attribute]) -> bool {
    attrs.iter().any(|attr| {
        attr.path().is_ident("cfg")
            && attr.meta.require_list().is_ok_and(|list| list.tokens.to_string().split_whitespace().eq(["test"]))
    })
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(x) => &x.attrs,
        Item::Enum(x) => &x.attrs,
        Item::Fn(x) => &x.attrs,
        Item::Impl(x) => &x.attrs,
        Item::Mod(x) => &x.attrs,
        Item::Static(x) => &x.attrs,
        Item::Struct(x) => &x.attrs,
        Item::Trait(x) => &x.attrs,
        Item::Type(x) => &x.attrs,
        Item::Use(x) => &x.attrs,
        _ => &[],
    }
}

fn gather(modules: &mut BTreeMap<Place, Module>, file: &str, place: Place, items: &[Item]) {
    let mut module = Module { file: file.to_string(), ..Module::default() };
    for item in items.iter().filter(|item| !is_for_tests(attributes(item))) {
        match item {
            Item::Use(import) => module.import(&mut Vec::new(), &import.tree),
            Item::Mod(child) => {
                if let Some((_, items)) = &child.content {
                    let below = place.iter().cloned().chain([child.ident.to_string()]).collect();
                    gather(modules, file, below, items);
                }
            }
            other => module.visit_item(other),
        }
    }
    modules.insert(place, module);
}

impl Module {
    fn import(&mut self, before: &mut Place, tree: &UseTree) {
        match tree {
            UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.import(before, &path.tree);
                before.pop();
            }
            UseTree::Name(name) => self.bring(before, &name.ident.to_string(), None),
            UseTree::Rename(name) => self.bring(before, &name.ident.to_string(), Some(name.rename.to_string())),
            UseTree::Glob(_) => self.globs.push(before.clone()),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.import(before, tree)),
        }
    }

    fn bring(&mut self, before: &Place, name: &str, renamed: Option<String>) {
        let mut path = before.clone();
        if name != "self" {
            path.push(name.to_string());
        }
        let known_as = renamed.or_else(|| path.last().cloned()).unwrap_or_default();
        self.uses.insert(known_as, path);
    }
}

impl<'ast> Visit<'ast> for Module {
    fn visit_item_use(&mut self, import: &'ast syn::ItemUse) {
        // Inside of a function.
        self.import(&mut Vec::new(), &import.tree);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.segments.len() > 1 {
            self.paths.insert(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        }
        syn::visit::visit_path(self, path);
    }

    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {
        // `pub(super)` imports nothing.
    }
}

/// The longest chain of names that stand for other names.
const DEEP: usize = 12;

/// The file that defines what `path` names in the module at `place`, if it is one of this crate.
fn defining<'a>(modules: &'a BTreeMap<Place, Module>, place: &Place, path: &[String], deep: usize) -> Option<&'a str> {
    if deep > DEEP {
        return None;
    }
    let (first, rest) = path.split_first()?;
    let (mut at, mut rest) = match first.as_str() {
        "crate" => (Vec::new(), rest),
        "self" => (place.clone(), rest),
        "super" => (place[..place.len().checked_sub(1)?].to_vec(), rest),
        _ => {
            let module = modules.get(place)?;
            let child: Place = place.iter().cloned().chain([first.clone()]).collect();
            if modules.contains_key(&child) {
                (child, rest)
            } else if let Some(used) = module.uses.get(first).filter(|used| used.as_slice() != path) {
                let whole: Place = used.iter().chain(rest).cloned().collect();
                return defining(modules, place, &whole, deep + 1);
            } else {
                return None;
            }
        }
    };
    loop {
        let module = modules.get(&at)?;
        let Some((name, behind)) = rest.split_first() else { return Some(&module.file) };
        if name == "super" {
            at.pop()?;
        } else {
            at.push(name.clone());
            if !modules.contains_key(&at) {
                at.pop();
                // A name that the module has from elsewhere counts there.
                if let Some(used) = module.uses.get(name) {
                    let whole: Place = used.iter().chain(behind).cloned().collect();
                    return defining(modules, &at, &whole, deep + 1).or(Some(&module.file));
                }
                return Some(&module.file);
            }
        }
        rest = behind;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a file imports what its code names, by whichever way, and nothing for its tests. Method: a crate that the
    /// test composes.
    #[test]
    fn ways_to_name_a_file() {
        let files: BTreeMap<&str, &str> = [
            ("lib.rs", "mod a;\nmod b;\npub use b::deep::Deep;\nuse a::first;\n"),
            ("a.rs", "use super::b::{self, deep::Other as O};\nfn first() { b::second(); O::new() }\n"),
            ("b.rs", "pub mod deep;\nuse deep::Deep;\npub(super) fn second() -> Deep { Deep }\n"),
            ("b/deep.rs", "use crate::Deep as Same;\npub struct Deep;\n#[cfg(test)]\nmod tests { use crate::a; }\n"),
            (
                "c.rs",
                "use crate::Deep;\nuse crate::b::Deep as D;\nuse std::fs;\nmod inner { use super::super::a::*; }\n",
            ),
            (
                "d.rs",
                "// crate::a\nfn f(x: &crate::b::deep::Deep) { std::mem::drop(x) }\n#[cfg(test)]\nuse crate::a;\n",
            ),
        ]
        .into();
        let imports = read(&files).expect("Rust");
        let of = |file: &str| imports[file].iter().copied().collect::<Vec<_>>();
        assert_eq!(of("lib.rs"), ["a.rs", "b/deep.rs"]);
        assert_eq!(of("a.rs"), ["b.rs", "b/deep.rs"]);
        assert_eq!(of("b.rs"), ["b/deep.rs"]);
        assert_eq!(of("b/deep.rs"), [""; 0]);
        assert_eq!(of("c.rs"), ["a.rs", "b/deep.rs"], "as the file that defines it");
        assert_eq!(of("d.rs"), ["b/deep.rs"]);
        assert!(read(&[("x.rs", "fn {")].into()).is_err_and(|e| e.starts_with("x.rs: ")));
    }
}
