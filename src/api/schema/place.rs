//! Where a walk stands in an object. The path is made only where there is something to report.

use crate::api::field::Path;

/// A place, with the places above it.
#[derive(Clone, Copy, Debug)]
pub(in crate::api) enum Place<'a> {
    /// The object itself, or a field of it with this name.
    Root(&'a str),
    Field(&'a Place<'a>, &'a str),
    /// An entry of a map.
    Key(&'a Place<'a>, &'a str),
    Item(&'a Place<'a>, usize),
}

impl Place<'_> {
    pub(in crate::api) fn path(&self) -> Path {
        match self {
            Self::Root(name) => Path::new(name),
            Self::Field(above, name) => above.path().child(name),
            Self::Key(above, name) => above.path().key(name),
            Self::Item(above, index) => above.path().index(*index),
        }
    }
}
