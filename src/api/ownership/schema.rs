//! What merging needs to know of a type: a scalar, a list or an object, and which of these are
//! written as a whole.
//!
//! A value may be of several forms at once (`int-or-string`, free content); the value decides.

use std::collections::{BTreeMap, HashMap};

use serde_json::Value;

/// A place among the atoms of a schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Type(pub usize);

/// What a scalar may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scalar {
    Numeric,
    String,
    Boolean,
    Any,
}

/// The forms that a value may have. With none, every value is wrong.
#[derive(Clone, Debug, Default)]
pub struct Atom {
    pub scalar: Option<Scalar>,
    pub list: Option<List>,
    pub map: Option<Map>,
}

#[derive(Clone, Debug)]
pub struct List {
    pub items: Option<Type>,
    /// Written as a whole. Else it is a list map, when it has keys, or a set.
    pub atomic: bool,
    pub keys: Box<[Box<str>]>,
}

/// A struct, a map, or both.
#[derive(Clone, Debug, Default)]
pub struct Map {
    pub fields: BTreeMap<Box<str>, Field>,
    /// The type of what is no field; without it there may be nothing else.
    pub values: Option<Type>,
    /// Written as a whole.
    pub atomic: bool,
}

#[derive(Clone, Debug)]
pub struct Field {
    pub type_: Type,
    /// What an absent field counts as where it is a key.
    pub default: Option<Value>,
}

/// The schema of one kind in one version.
#[derive(Clone, Debug)]
pub struct Schema {
    atoms: Vec<Atom>,
    root: Type,
}

/// A form that was chosen.
#[derive(Clone, Copy, Debug)]
pub(super) enum Form<'a> {
    Map(&'a Map),
    Scalar(Scalar),
    List(&'a List),
}

impl Form<'_> {
    pub(super) fn is_like(self, other: Self) -> bool {
        std::mem::discriminant(&self) == std::mem::discriminant(&other)
    }
}

impl Map {
    /// The type of a field or entry.
    pub(super) fn of_field(&self, name: &str) -> Option<Type> {
        self.fields.get(name).map(|field| field.type_).or(self.values)
    }
}

impl Schema {
    /// Free content below which nothing can be told apart.
    pub const UNTYPED: Type = Type(0);
    /// Free content, of which objects are told apart field by field.
    pub const DEDUCED: Type = Type(1);

    /// The first two are those of free content, see [`Self::free`].
    pub fn new(atoms: Vec<Atom>, root: Type) -> Self {
        Self { atoms, root }
    }

    /// What is known when nothing is known: objects are merged, lists are taken whole.
    pub fn deduced() -> Self {
        Self::new(Self::free().into(), Self::DEDUCED)
    }

    /// [`Self::UNTYPED`] and [`Self::DEDUCED`].
    pub fn free() -> [Atom; 2] {
        let of = |values: Type, atomic: bool| Atom {
            scalar: Some(Scalar::Any),
            list: Some(List { items: Some(Self::UNTYPED), atomic: true, keys: [].into() }),
            map: Some(Map { fields: BTreeMap::new(), values: Some(values), atomic }),
        };
        [of(Self::UNTYPED, true), of(Self::DEDUCED, false)]
    }

    pub fn root(&self) -> Type {
        self.root
    }

    pub(super) fn atom(&self, type_: Type) -> &Atom {
        &self.atoms[type_.0]
    }

    /// The form that a value has, or else the one that its type prefers.
    pub(super) fn form(&self, type_: Option<Type>, value: Option<&Value>) -> Option<Form<'_>> {
        let atom = self.atom(type_?);
        let (map, list) = (atom.map.as_ref().map(Form::Map), atom.list.as_ref().map(Form::List));
        let scalar = atom.scalar.map(Form::Scalar);
        let own = match value {
            None | Some(Value::Null) => None,
            Some(Value::Object(_)) => map,
            Some(Value::Array(_)) => list,
            Some(_) => scalar,
        };
        own.or(map).or(scalar).or(list)
    }

    /// What an absent key of an item counts as.
    pub(super) fn key_default(&self, list: &List, key: &str) -> Option<&Value> {
        let map = self.atom(list.items?).map.as_ref()?;
        map.fields.get(key)?.default.as_ref()
    }

    /// Does the map hold nothing but free content? Whoever wrote it knew no schema.
    pub(super) fn is_free(map: &Map) -> bool {
        map.fields.is_empty() && map.values == Some(Self::DEDUCED)
    }
}

/// Names of types and the places that they were given, while a schema is compiled.
pub(super) type Places = HashMap<String, Type>;
