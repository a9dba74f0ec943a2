//! Sets of paths, as a tree: each step says whether it is a member itself and what is below it.
//!
//! Owns the operations of sets; `fields` has their JSON. Every step is a member or leads to one,
//! and steps are sorted: equal sets are equal trees.

use std::{cmp::Ordering, fmt};

use super::path_element::{ElementPath, PathElement, path_text};
use crate::machinery::schema::compiled::{Schema, TypeRef};

/// A set of paths. No manager owns an object as a whole, so the empty path is never a member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PathSet {
    pub(super) steps: Vec<PathNode>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PathNode {
    pub(super) element: PathElement,
    pub(super) member: bool,
    pub(super) below: PathSet,
}

impl PathSet {
    /// Returns the set of `paths`, without the paths that lead to them.
    pub fn new<'a>(paths: impl IntoIterator<Item = &'a [PathElement]>) -> Self {
        let mut set = Self::default();
        for path in paths {
            set.insert(path);
        }
        set
    }

    /// Returns the set of dotted paths of fields, such as `metadata.name`.
    pub fn from_fields(paths: &[&str]) -> Self {
        let mut set = Self::default();
        for path in paths {
            set.insert(&path.split('.').map(PathElement::field).collect::<Vec<_>>());
        }
        set
    }

    pub fn insert(&mut self, path: &[PathElement]) {
        let Some((element, rest)) = path.split_first() else { return };
        let position = match self.find_position(element) {
            Ok(position) => position,
            Err(position) => {
                let step =
                    PathNode { element: element.clone(), member: false, below: Self::default() };
                self.steps.insert(position, step);
                position
            }
        };
        if rest.is_empty() {
            self.steps[position].member = true;
        } else {
            self.steps[position].below.insert(rest);
        }
    }

    /// Adds a step and the set below it.
    pub(super) fn add_step(&mut self, element: PathElement, member: bool, below: Self) {
        if !member && below.is_empty() {
            return;
        }
        let is_last = self.steps.last().is_none_or(|step| step.element < element);
        let position = if is_last { Err(self.steps.len()) } else { self.find_position(&element) };
        match position {
            Err(position) => self.steps.insert(position, PathNode { element, member, below }),
            Ok(position) => {
                let step = &mut self.steps[position];
                step.member |= member;
                step.below = step.below.union(&below);
            }
        }
    }

    fn find_position(&self, element: &PathElement) -> Result<usize, usize> {
        self.steps.binary_search_by(|step| step.element.cmp(element))
    }

    fn find_step(&self, element: &PathElement) -> Option<&PathNode> {
        self.find_position(element).ok().map(|position| &self.steps[position])
    }

    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Returns the number of members.
    pub fn len(&self) -> usize {
        self.steps.iter().map(|step| usize::from(step.member) + step.below.len()).sum()
    }

    pub fn contains(&self, path: &[PathElement]) -> bool {
        let Some((element, rest)) = path.split_first() else { return false };
        self.find_step(element).is_some_and(|step| {
            if rest.is_empty() { step.member } else { step.below.contains(rest) }
        })
    }

    /// Is the step `element` a member?
    pub(super) fn has_element(&self, element: &PathElement) -> bool {
        self.find_step(element).is_some_and(|step| step.member)
    }

    /// Returns the set below a step; `None` when it is empty.
    pub fn set_below(&self, element: &PathElement) -> Option<&Self> {
        self.find_step(element).map(|step| &step.below).filter(|below| !below.is_empty())
    }

    /// Iterates over the steps: element, whether it is a member, the set below it.
    pub(super) fn steps(&self) -> impl Iterator<Item = (&PathElement, bool, &Self)> {
        self.steps.iter().map(|step| (&step.element, step.member, &step.below))
    }

    /// Returns all members; a step comes before the members below it.
    pub fn paths(&self) -> Vec<ElementPath> {
        let mut paths = Vec::new();
        self.collect_paths(&mut Vec::new(), &mut paths);
        paths
    }

    fn collect_paths(&self, prefix: &mut ElementPath, paths: &mut Vec<ElementPath>) {
        let child_path = |prefix: &ElementPath, element: &PathElement| {
            let mut path = prefix.clone();
            path.push(element.clone());
            path
        };
        for step in self.steps.iter().filter(|step| step.member) {
            paths.push(child_path(prefix, &step.element));
        }
        for step in &self.steps {
            prefix.push(step.element.clone());
            step.below.collect_paths(prefix, paths);
            prefix.pop();
        }
    }

    /// Returns the paths that are in either set.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        if self.is_empty() {
            return other.clone();
        }
        if other.is_empty() {
            return self.clone();
        }
        self.join_steps(other, |left, right| match (left, right) {
            (Some(left), Some(right)) => Some(PathNode {
                element: left.element.clone(),
                member: left.member || right.member,
                below: left.below.union(&right.below),
            }),
            (left, right) => left.or(right).cloned(),
        })
    }

    /// Returns the paths that are in both sets.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        self.join_steps(other, |left, right| {
            let (left, right) = (left?, right?);
            let below = left.below.intersection(&right.below);
            Some(PathNode {
                element: left.element.clone(),
                member: left.member && right.member,
                below,
            })
        })
    }

    /// Returns the paths of this set that `other` lacks. A path of `other` does not remove the
    /// paths below it.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        self.join_steps(other, |left, right| {
            let left_node = left?;
            let Some(right_node) = right else { return Some(left_node.clone()) };
            Some(PathNode {
                element: left_node.element.clone(),
                member: left_node.member && !right_node.member,
                below: left_node.below.difference(&right_node.below),
            })
        })
    }

    /// Returns the paths of this set that `other` lacks. A path of `other` removes the paths below
    /// it, too.
    #[must_use]
    pub fn recursive_difference(&self, other: &Self) -> Self {
        self.join_steps(other, |left, right| {
            let left_node = left?;
            match right {
                None => Some(left_node.clone()),
                Some(right) if right.member => None,
                Some(right) => Some(PathNode {
                    element: left_node.element.clone(),
                    member: left_node.member,
                    below: left_node.below.recursive_difference(&right.below),
                }),
            }
        })
    }

    /// Returns the members that have no other member below them.
    #[must_use]
    pub fn leaves(&self) -> Self {
        let leaf = |step: &PathNode| PathNode {
            element: step.element.clone(),
            member: step.below.is_empty(),
            below: step.below.leaves(),
        };
        Self { steps: self.steps.iter().map(leaf).collect() }
    }

    /// Returns the set with each struct field that leads to a member: the owner of `a.b` owns the
    /// named field `a`, too. Entries of a map are not added.
    #[must_use]
    pub fn with_named(&self, schema: &Schema, type_: Option<TypeRef>) -> Self {
        let atom = type_.map(|type_| schema.atom(type_));
        let map = atom.and_then(|atom| atom.map.as_ref());
        let list = atom.and_then(|atom| atom.list.as_ref());
        let to_named_node = |step: &PathNode| {
            let (inner_type, is_named) = match (&step.element, map, list) {
                (PathElement::Field(name), Some(map), _) => {
                    (map.field_type(name), map.fields.get(name).is_some())
                }
                (PathElement::Key(_), _, Some(list)) => (list.items, false),
                _ => (None, false),
            };
            PathNode {
                element: step.element.clone(),
                member: step.member || is_named,
                below: step.below.with_named(schema, inner_type),
            }
        };
        Self { steps: self.steps.iter().map(to_named_node).collect() }
    }

    /// Walks the steps of both sets in order, and collects the non-empty steps that `build_step`
    /// returns.
    fn join_steps(
        &self,
        other: &Self,
        build_step: impl Fn(Option<&PathNode>, Option<&PathNode>) -> Option<PathNode>,
    ) -> Self {
        let (mut left, mut right) = (self.steps.iter().peekable(), other.steps.iter().peekable());
        let mut steps = Vec::new();
        loop {
            let order = match (left.peek(), right.peek()) {
                (Some(left), Some(right)) => left.element.cmp(&right.element),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (None, None) => return Self { steps },
            };
            let step = match order {
                Ordering::Less => build_step(left.next(), None),
                Ordering::Greater => build_step(None, right.next()),
                Ordering::Equal => build_step(left.next(), right.next()),
            };
            steps.extend(step.filter(|step| step.member || !step.below.is_empty()));
        }
    }
}

impl fmt::Display for PathSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let paths: Vec<String> = self.paths().iter().map(|path| path_text(path)).collect();
        f.write_str(&paths.join("\n"))
    }
}
