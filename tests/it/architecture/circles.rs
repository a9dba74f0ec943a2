//! No two files of a role import each other, directly or through other files. A file and the folder
//! of its name count as one: within it, any file may import any other.

use std::collections::{BTreeMap, BTreeSet};

use syn::{
    Attribute, Item, ItemUse, Path, UseTree,
    visit::{self, Visit},
};

use super::all_sources;

/// The path of a file's module below the crate: `["pilot", "kube", "gate"]`.
type Module = Vec<String>;

/// Paths that a file names, as far as they may be ours.
#[derive(Default)]
struct Named(Vec<Vec<String>>);

impl Named {
    fn tree(&mut self, tree: &UseTree, before: &[String]) {
        let with = |name: String| [before, &[name]].concat();
        match tree {
            UseTree::Path(path) => self.tree(&path.tree, &with(path.ident.to_string())),
            UseTree::Name(name) => self.0.push(with(name.ident.to_string())),
            UseTree::Rename(name) => self.0.push(with(name.ident.to_string())),
            UseTree::Glob(_) => self.0.push(before.to_vec()),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.tree(tree, before)),
        }
    }
}

impl<'ast> Visit<'ast> for Named {
    fn visit_item(&mut self, item: &'ast Item) {
        if !is_for_tests(item) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        self.tree(&item.tree, &[]);
    }

    fn visit_path(&mut self, path: &'ast Path) {
        self.0.push(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        visit::visit_path(self, path);
    }
}

fn is_for_tests(item: &Item) -> bool {
    let attributes: &[Attribute] = match item {
        Item::Const(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    };
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute.parse_args::<Path>().is_ok_and(|path| path.is_ident("test"))
    })
}

/// The file that a path leads into, as seen from `module`.
fn file_of(path: &[String], module: &Module, files: &BTreeSet<Module>) -> Option<Module> {
    let ups = path.iter().take_while(|segment| *segment == "super").count();
    let mut absolute = match path.first()?.as_str() {
        "crate" => path[1..].to_vec(),
        "self" => [module, &path[1..]].concat(),
        "super" => [&module[..module.len().checked_sub(ups)?], &path[ups..]].concat(),
        _ => return None,
    };
    while !absolute.is_empty() && !files.contains(&absolute) {
        absolute.pop();
    }
    (!absolute.is_empty()).then_some(absolute)
}

fn imports() -> BTreeMap<Module, BTreeSet<Module>> {
    let parsed: BTreeMap<Module, syn::File> = all_sources()
        .into_iter()
        .map(|(path, text)| {
            let module = path.trim_start_matches("src/").trim_end_matches(".rs");
            let file = syn::parse_file(&text).unwrap_or_else(|error| panic!("{path}: {error}"));
            (module.split('/').map(str::to_owned).collect(), file)
        })
        .filter(|(module, _): &(Module, _)| !module.iter().any(|part| part == "tests"))
        .collect();
    let files: BTreeSet<Module> = parsed.keys().cloned().collect();
    let found = parsed.iter().map(|(module, file)| {
        let mut named = Named::default();
        named.visit_file(file);
        let into = named.0.iter().filter_map(|path| file_of(path, module, &files));
        let others = into.filter(|other| !other.starts_with(module) && !module.starts_with(other));
        (module.clone(), others.collect())
    });
    found.collect()
}

/// Files that a file imports, directly or through other files; within its role.
fn reached(from: &Module, imports: &BTreeMap<Module, BTreeSet<Module>>) -> BTreeSet<Module> {
    let (mut seen, mut open) = (BTreeSet::new(), vec![from.clone()]);
    while let Some(module) = open.pop() {
        for next in imports.get(&module).into_iter().flatten() {
            if next[0] == from[0] && seen.insert(next.clone()) {
                open.push(next.clone());
            }
        }
    }
    seen
}

/// Files outside of a folder that the folder's files import, directly or through others outside, and
/// that import one of the folder's files. Those above the folder hold it, and do not count.
fn around(folder: &Module, imports: &BTreeMap<Module, BTreeSet<Module>>) -> Vec<Module> {
    let outside = |module: &Module| {
        module[0] == folder[0] && !module.starts_with(folder) && !folder.starts_with(module)
    };
    let inside = imports.iter().filter(|(module, _)| module.starts_with(folder));
    let mut open: Vec<Module> = inside.flat_map(|(_, known)| known).cloned().collect();
    open.retain(outside);
    let (mut seen, mut wrong) = (BTreeSet::new(), Vec::new());
    while let Some(module) = open.pop() {
        if !seen.insert(module.clone()) {
            continue;
        }
        let known = imports.get(&module).into_iter().flatten();
        if known.clone().any(|other| other.starts_with(folder)) {
            wrong.push(module.clone());
        }
        open.extend(known.filter(|other| outside(other)).cloned());
    }
    wrong
}

/// A circle through a file and its own folder, such as `a/b → c → a`, is none of files.
#[test]
fn no_folder_imports_itself_through_others() {
    let imports = imports();
    let folders: BTreeSet<Module> = imports
        .keys()
        .flat_map(|module| (2..module.len()).map(|length| module[..length].to_vec()))
        .collect();
    assert!(folders.len() > 40, "folders are not read: {folders:?}");
    let wrong = folders.iter().flat_map(|folder| {
        let around = around(folder, &imports);
        around.into_iter().map(|module| format!("{} → … → {}", folder.join("/"), module.join("/")))
    });
    let wrong: Vec<_> = wrong.collect();
    assert!(wrong.is_empty(), "these close a circle:\n{}", wrong.join("\n"));
}

#[test]
fn no_files_import_each_other_in_a_circle() {
    let imports = imports();
    assert!(imports.values().map(BTreeSet::len).sum::<usize>() > 500, "imports are not read");
    let reach: BTreeMap<_, _> =
        imports.keys().map(|module| (module, reached(module, &imports))).collect();
    let mut wrong = Vec::new();
    for (module, known) in &imports {
        let back = known.iter().filter(|other| reach[*other].contains(module));
        wrong.extend(back.map(|other| format!("{} → {}", module.join("/"), other.join("/"))));
    }
    assert!(wrong.is_empty(), "these close a circle:\n{}", wrong.join("\n"));
}
