//! A compiled schema, as decoding, pruning, validation and merging need it.
//!
//! Owns the forms that a value may have (a scalar, a list, an object), which of these are written
//! as a whole, and the facts beside the forms. Types lie in one list and refer to each other by
//! index: kinds of a version share them, and a type may contain itself.
//!
//! A value may be of several forms at once (`int-or-string`, free content); the value decides.

use std::{cmp::Ordering, sync::Arc};

use serde_json::Value;

/// Index of a [`SchemaAtom`] in its schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TypeRef(pub usize);

/// The JSON types that a scalar may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScalarType {
    Numeric,
    String,
    Boolean,
    Any,
}

/// A type: the forms that its values may have when they are merged, and the facts beside them.
/// Without any form, every value is wrong.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SchemaAtom {
    pub scalar: Option<ScalarType>,
    pub list: Option<ListSchema>,
    pub map: Option<MapSchema>,
    pub facts: SchemaFacts,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ListSchema {
    pub items: Option<TypeRef>,
    /// True when the list is written as a whole. Otherwise it is a list map if it has keys, or a
    /// set.
    pub atomic: bool,
    pub keys: Box<[Box<str>]>,
}

/// An object type: a struct, a map, or both.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MapSchema {
    pub fields: FieldSchemas,
    /// The type of entries that are not named fields; `None` where there may be none.
    pub values: Option<TypeRef>,
    /// True when the map is written as a whole.
    pub atomic: bool,
}

/// Fields by name. They are sorted by the length of the name first: length alone tells most names
/// apart.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FieldSchemas(Box<[(Box<str>, FieldSchema)]>);

#[derive(Clone, Debug, PartialEq)]
pub struct FieldSchema {
    pub type_: TypeRef,
    /// The value that stands for the field where it is a key of a list item and absent.
    pub default: Option<Value>,
    /// Most bytes of a text field, or of each text of a list field.
    pub max_bytes: Option<usize>,
}

/// Facts about a type beside its forms, for validation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SchemaFacts {
    /// The JSON type that values must have; `None` where several are allowed.
    pub word: Option<JsonType>,
    pub format: ValueFormat,
    pub unnamed: UnknownFieldPolicy,
    pub origin: TypeOrigin,
    /// Names of the required fields.
    pub required: Box<[Box<str>]>,
    /// The closed list of allowed texts; `None` where all are allowed.
    pub values: Option<Box<[Box<str>]>>,
    pub max_items: Option<usize>,
    pub max_properties: Option<usize>,
}

/// A type of JSON, as schemas name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JsonType {
    Object,
    Array,
    String,
    Integer,
    Number,
    Boolean,
}

/// The `format` of a value, where it limits what the value may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ValueFormat {
    #[default]
    None,
    DateTime,
    IntOrString,
    Int32,
    /// A quantity: a number or a text.
    Quantity,
}

/// How fields are treated that the schema does not name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnknownFieldPolicy {
    /// Unnamed fields may hold anything, because the schema names no field.
    #[default]
    Free,
    /// Unnamed fields are kept, and their content is not checked.
    Kept,
    /// Unnamed fields are unknown.
    Unknown,
}

/// Where a type comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TypeOrigin {
    /// Defined by Navigator, which checks what the type demands.
    Ours,
    /// A part of a pod template that is merged over another one; `null` in it has a meaning.
    PodTemplate,
    /// A type of Kubernetes, validated where Kubernetes serves it.
    #[default]
    Core,
}

/// The schema of one kind in one version.
#[derive(Clone, Debug)]
pub struct Schema {
    atoms: Arc<[SchemaAtom]>,
    root: TypeRef,
}

/// The form of a type that was chosen for a value.
#[derive(Clone, Copy, Debug)]
pub enum SchemaForm<'a> {
    Map(&'a MapSchema),
    Scalar(ScalarType),
    List(&'a ListSchema),
}

/// The type of a field, as decoding sees it.
#[derive(Clone, Copy, Debug)]
pub enum FieldLookup<'a> {
    Type(&'a SchemaAtom),
    /// The field may hold anything.
    Free,
    /// The schema has no such field.
    Unknown,
}

impl SchemaForm<'_> {
    pub fn is_like(self, other: Self) -> bool {
        std::mem::discriminant(&self) == std::mem::discriminant(&other)
    }
}

impl JsonType {
    pub fn parse(word: &str) -> Option<Self> {
        let types =
            [Self::Object, Self::Array, Self::String, Self::Integer, Self::Number, Self::Boolean];
        types.into_iter().find(|candidate| candidate.as_str() == word)
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

impl FieldSchemas {
    pub fn get(&self, name: &str) -> Option<&FieldSchema> {
        let index = self
            .0
            .binary_search_by(|(field_name, _)| Self::compare_names(field_name, name))
            .ok()?;
        Some(&self.0[index].1)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn compare_names(one: &str, other: &str) -> Ordering {
        one.len().cmp(&other.len()).then_with(|| one.cmp(other))
    }
}

impl FromIterator<(Box<str>, FieldSchema)> for FieldSchemas {
    fn from_iter<I: IntoIterator<Item = (Box<str>, FieldSchema)>>(fields: I) -> Self {
        let mut fields: Box<[_]> = fields.into_iter().collect();
        fields.sort_by(|(one, _), (other, _)| Self::compare_names(one, other));
        Self(fields)
    }
}

impl MapSchema {
    /// Returns the type of the field or entry `name`.
    pub fn field_type(&self, name: &str) -> Option<TypeRef> {
        self.fields.get(name).map(|field| field.type_).or(self.values)
    }
}

impl Schema {
    /// Index of the type for free content that is written as a whole.
    pub const UNTYPED: TypeRef = TypeRef(0);
    /// Index of the type for free content whose objects are merged field by field.
    pub const DEDUCED: TypeRef = TypeRef(1);

    /// Makes a schema of `atoms`, the first two of which must be those of [`Self::free_atoms`].
    pub fn new(atoms: impl Into<Arc<[SchemaAtom]>>, root: TypeRef) -> Self {
        Self { atoms: atoms.into(), root }
    }

    /// Returns a schema with another root over the same atoms.
    pub(super) fn with_root(&self, root: TypeRef) -> Self {
        Self { atoms: Arc::clone(&self.atoms), root }
    }

    /// Returns the schema for a kind that has none: objects are merged, lists are taken whole.
    pub fn deduced_schema() -> Self {
        Self::new(Self::free_atoms(), Self::DEDUCED)
    }

    /// Returns the atoms of [`Self::UNTYPED`] and [`Self::DEDUCED`].
    pub fn free_atoms() -> [SchemaAtom; 2] {
        let free_atom = |values: TypeRef, atomic: bool| SchemaAtom {
            scalar: Some(ScalarType::Any),
            list: Some(ListSchema { items: Some(Self::UNTYPED), atomic: true, keys: [].into() }),
            map: Some(MapSchema { fields: FieldSchemas::default(), values: Some(values), atomic }),
            facts: SchemaFacts::default(),
        };
        [free_atom(Self::UNTYPED, true), free_atom(Self::DEDUCED, false)]
    }

    pub fn root(&self) -> TypeRef {
        self.root
    }

    pub fn atom(&self, type_: TypeRef) -> &SchemaAtom {
        &self.atoms[type_.0]
    }

    /// Returns the form of `type_` that fits `value`, or else the one that the type prefers.
    pub fn form(&self, type_: Option<TypeRef>, value: Option<&Value>) -> Option<SchemaForm<'_>> {
        let atom = self.atom(type_?);
        let (map, list) =
            (atom.map.as_ref().map(SchemaForm::Map), atom.list.as_ref().map(SchemaForm::List));
        let scalar = atom.scalar.map(SchemaForm::Scalar);
        let matching_form = match value {
            None | Some(Value::Null) => None,
            Some(Value::Object(_)) => map,
            Some(Value::Array(_)) => list,
            Some(_) => scalar,
        };
        matching_form.or(map).or(scalar).or(list)
    }

    /// Returns the default of a key field of a list item.
    pub fn key_default(&self, list: &ListSchema, key: &str) -> Option<&Value> {
        let map = self.atom(list.items?).map.as_ref()?;
        map.fields.get(key)?.default.as_ref()
    }

    /// Does the map hold nothing but free content, as where no schema is known?
    pub fn is_free(map: &MapSchema) -> bool {
        map.fields.is_empty() && map.values == Some(Self::DEDUCED)
    }

    /// Returns the type of a list's items; `None` where they may be anything.
    pub fn item_type<'a>(&'a self, atom: &SchemaAtom) -> Option<&'a SchemaAtom> {
        self.typed_atom(atom.list.as_ref()?.items?)
    }

    /// Returns the type of a map's entries that are not named fields; `None` where they may be
    /// anything.
    pub fn entry_type<'a>(&'a self, atom: &SchemaAtom) -> Option<&'a SchemaAtom> {
        self.typed_atom(atom.map.as_ref()?.values?)
    }

    /// Looks up the type of the field or entry `name`.
    pub fn find_field(&self, atom: &SchemaAtom, name: &str) -> FieldLookup<'_> {
        let Some(map) = &atom.map else { return FieldLookup::Free };
        if let Some(field) = map.fields.get(name) {
            return FieldLookup::Type(self.atom(field.type_));
        }
        match (self.entry_type(atom), atom.facts.unnamed) {
            (Some(entries), _) => FieldLookup::Type(entries),
            (None, UnknownFieldPolicy::Unknown) => FieldLookup::Unknown,
            (None, UnknownFieldPolicy::Free | UnknownFieldPolicy::Kept) => FieldLookup::Free,
        }
    }

    fn typed_atom(&self, type_: TypeRef) -> Option<&SchemaAtom> {
        (type_ != Self::UNTYPED && type_ != Self::DEDUCED).then(|| self.atom(type_))
    }
}
