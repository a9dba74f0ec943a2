//! A compiled schema: all that decoding, pruning, validation and merging need to know of values.
//!
//! Owns the forms that a value may have (a scalar, a list, an object), which of these are written
//! as a whole, and the facts beside the forms. Types lie in one row and refer to each other by
//! index: kinds of a version share them, and a type may hold itself.
//!
//! A value may be of several forms at once (`int-or-string`, free content); the value decides.

use std::{cmp::Ordering, sync::Arc};

use serde_json::Value;

/// Index of an atom of a schema.
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

/// The forms that a value may have when it is merged, and the facts beside them. With no form,
/// every value is wrong.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Atom {
    pub scalar: Option<Scalar>,
    pub list: Option<List>,
    pub map: Option<Map>,
    pub facts: Facts,
}

#[derive(Clone, Debug, PartialEq)]
pub struct List {
    pub items: Option<Type>,
    /// The list is written as a whole. Else it is a list map, when it has keys, or a set.
    pub atomic: bool,
    pub keys: Box<[Box<str>]>,
}

/// A struct, a map, or both.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Map {
    pub fields: Fields,
    /// The type of entries that are no named fields; without it there may be none.
    pub values: Option<Type>,
    /// The map is written as a whole.
    pub atomic: bool,
}

/// Fields by name, sorted by the length of the name first: most names are told apart by that alone.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fields(Box<[(Box<str>, Field)]>);

#[derive(Clone, Debug, PartialEq)]
pub struct Field {
    pub type_: Type,
    /// The value that an absent key field of a list item counts as.
    pub default: Option<Value>,
    /// Most bytes of the text, or of each text of the list.
    pub max_bytes: Option<usize>,
}

/// What a schema says beside the forms.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Facts {
    /// The one type of JSON that values have to be of.
    pub word: Option<Word>,
    pub format: Format,
    pub unnamed: Unnamed,
    pub origin: Origin,
    /// Fields that have to be there.
    pub required: Box<[Box<str>]>,
    /// The only texts that are allowed.
    pub values: Option<Box<[Box<str>]>>,
    pub max_items: Option<usize>,
    pub max_properties: Option<usize>,
}

/// A type of JSON, as schemas name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    Object,
    Array,
    String,
    Integer,
    Number,
    Boolean,
}

/// Formats that say something about form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    #[default]
    None,
    DateTime,
    IntOrString,
    Int32,
    /// A number or its text.
    Quantity,
}

/// How fields are treated that the schema does not name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unnamed {
    /// Anything: the schema names no field.
    #[default]
    Free,
    /// Kept, and nothing below is looked at.
    Kept,
    /// Unknown.
    Unknown,
}

/// Which side defines a type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// Defined by Navigator, which checks what the type demands.
    Ours,
    /// The part of a pod template that is laid over another, in which `null` has a meaning.
    PodTemplate,
    /// Kubernetes' own, validated where it is served.
    #[default]
    Core,
}

/// The schema of one kind in one version.
#[derive(Clone, Debug)]
pub struct Schema {
    atoms: Arc<[Atom]>,
    root: Type,
}

/// A form that was chosen.
#[derive(Clone, Copy, Debug)]
pub(in crate::api) enum Form<'a> {
    Map(&'a Map),
    Scalar(Scalar),
    List(&'a List),
}

/// The type of a field, as decoding sees it.
#[derive(Clone, Copy, Debug)]
pub(in crate::api) enum Known<'a> {
    Type(&'a Atom),
    /// It may be anything.
    Free,
    /// There is no such field.
    Unknown,
}

impl Form<'_> {
    pub(in crate::api) fn is_like(self, other: Self) -> bool {
        std::mem::discriminant(&self) == std::mem::discriminant(&other)
    }
}

impl Word {
    pub fn parse(word: &str) -> Option<Self> {
        let all =
            [Self::Object, Self::Array, Self::String, Self::Integer, Self::Number, Self::Boolean];
        all.into_iter().find(|known| known.as_str() == word)
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Object => "object",
            Self::Array => "array",
            Self::String => "string",
            Self::Integer => "integer",
            Self::Number => "number",
            Self::Boolean => "boolean",
        }
    }
}

impl Fields {
    pub fn get(&self, name: &str) -> Option<&Field> {
        let at = self.0.binary_search_by(|(known, _)| Self::order(known, name)).ok()?;
        Some(&self.0[at].1)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn order(one: &str, other: &str) -> Ordering {
        one.len().cmp(&other.len()).then_with(|| one.cmp(other))
    }
}

impl FromIterator<(Box<str>, Field)> for Fields {
    fn from_iter<I: IntoIterator<Item = (Box<str>, Field)>>(fields: I) -> Self {
        let mut fields: Box<[_]> = fields.into_iter().collect();
        fields.sort_by(|(one, _), (other, _)| Self::order(one, other));
        Self(fields)
    }
}

impl Map {
    /// The type of a field or entry.
    pub(in crate::api) fn of_field(&self, name: &str) -> Option<Type> {
        self.fields.get(name).map(|field| field.type_).or(self.values)
    }
}

impl Schema {
    /// Free content that is written as a whole.
    pub const UNTYPED: Type = Type(0);
    /// Free content whose objects are merged field by field.
    pub const DEDUCED: Type = Type(1);

    /// The first two atoms are those of free content, see [`Self::free`].
    pub fn new(atoms: impl Into<Arc<[Atom]>>, root: Type) -> Self {
        Self { atoms: atoms.into(), root }
    }

    /// A schema with another root over the same atoms.
    pub(super) fn with_root(&self, root: Type) -> Self {
        Self { atoms: Arc::clone(&self.atoms), root }
    }

    /// The schema of a kind without one: objects are merged, lists are taken whole.
    pub fn deduced() -> Self {
        Self::new(Self::free(), Self::DEDUCED)
    }

    /// [`Self::UNTYPED`] and [`Self::DEDUCED`].
    pub fn free() -> [Atom; 2] {
        let of = |values: Type, atomic: bool| Atom {
            scalar: Some(Scalar::Any),
            list: Some(List { items: Some(Self::UNTYPED), atomic: true, keys: [].into() }),
            map: Some(Map { fields: Fields::default(), values: Some(values), atomic }),
            facts: Facts::default(),
        };
        [of(Self::UNTYPED, true), of(Self::DEDUCED, false)]
    }

    pub fn root(&self) -> Type {
        self.root
    }

    pub(in crate::api) fn atom(&self, type_: Type) -> &Atom {
        &self.atoms[type_.0]
    }

    /// The form that a value has, or else the one that its type prefers.
    pub(in crate::api) fn form(
        &self,
        type_: Option<Type>,
        value: Option<&Value>,
    ) -> Option<Form<'_>> {
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

    /// The default of a key field of a list item.
    pub(in crate::api) fn key_default(&self, list: &List, key: &str) -> Option<&Value> {
        let map = self.atom(list.items?).map.as_ref()?;
        map.fields.get(key)?.default.as_ref()
    }

    /// Does the map hold nothing but free content, as where no schema is known?
    pub(in crate::api) fn is_free(map: &Map) -> bool {
        map.fields.is_empty() && map.values == Some(Self::DEDUCED)
    }

    /// The type of a list's items, unless they may be anything.
    pub(in crate::api) fn items<'a>(&'a self, atom: &Atom) -> Option<&'a Atom> {
        self.told(atom.list.as_ref()?.items?)
    }

    /// The type of the entries of a map that are no fields, unless they may be anything.
    pub(in crate::api) fn entries<'a>(&'a self, atom: &Atom) -> Option<&'a Atom> {
        self.told(atom.map.as_ref()?.values?)
    }

    /// The type of a field or entry.
    pub(in crate::api) fn known(&self, atom: &Atom, name: &str) -> Known<'_> {
        let Some(map) = &atom.map else { return Known::Free };
        if let Some(field) = map.fields.get(name) {
            return Known::Type(self.atom(field.type_));
        }
        match (self.entries(atom), atom.facts.unnamed) {
            (Some(entries), _) => Known::Type(entries),
            (None, Unnamed::Unknown) => Known::Unknown,
            (None, Unnamed::Free | Unnamed::Kept) => Known::Free,
        }
    }

    fn told(&self, type_: Type) -> Option<&Atom> {
        (type_ != Self::UNTYPED && type_ != Self::DEDUCED).then(|| self.atom(type_))
    }
}
