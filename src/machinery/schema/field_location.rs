//! The place of a walk in an object. Its path is built only where there is something to report.

use crate::machinery::field_error::FieldPath;

/// A place in an object, linked to the place above it.
#[derive(Clone, Copy, Debug)]
pub enum FieldLocation<'a> {
    /// The object itself, or a field of it with this name.
    Root(&'a str),
    Field(&'a FieldLocation<'a>, &'a str),
    /// An entry of a map, by its key.
    Key(&'a FieldLocation<'a>, &'a str),
    Item(&'a FieldLocation<'a>, usize),
}

impl FieldLocation<'_> {
    pub fn path(&self) -> FieldPath {
        match self {
            Self::Root(name) => FieldPath::new(name),
            Self::Field(parent, name) => parent.path().child(name),
            Self::Key(parent, name) => parent.path().key(name),
            Self::Item(parent, index) => parent.path().index(*index),
        }
    }
}
