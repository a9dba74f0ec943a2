//! Server-side apply: an object as one manager wants it, merged into what is there.
//!
//! Owns `metadata.managedFields`: which fields each manager applied last. What it applied before
//! and does not say any more goes away, unless another one applied it, too. Lists are taken whole,
//! and writes that are no apply make nobody an owner.

use serde_json::{Map, Value, json};

use super::{Call, Change, Object, Registry, meta};
use crate::{
    api::{
        decode::{self, Document},
        kind::{Kind, Part, Version},
    },
    apiserver::{
        negotiate::unread,
        options::{ApplyOptions, WriteOptions},
        status::{ApiError, Resource, Result},
    },
};

/// Tries when the object comes and goes between two looks.
const ATTEMPTS: usize = 5;

/// An object as its manager wants it.
pub struct Apply {
    body: Document,
    options: ApplyOptions,
}

/// What becomes of an apply.
pub(super) struct Merged {
    pub(super) object: Document,
    /// `metadata.managedFields` from now on.
    pub(super) managed: Value,
}

impl Apply {
    /// A body of `application/apply-patch+yaml`, which is JSON as well.
    pub fn new(body: &[u8], options: ApplyOptions) -> Result<Self> {
        let read = decode::json(body).or_else(|_| decode::yaml(body));
        let mut body = read.map_err(|error| unread(&error, "error decoding YAML"))?;
        if !body.value.is_object() {
            return Err(ApiError::bad_request("error decoding YAML: an apply patch is an object"));
        }
        if body.value["metadata"].get("managedFields").is_some_and(|list| !list.is_null()) {
            return Err(ApiError::bad_request("metadata.managedFields must be nil"));
        }
        drop_nulls(&mut body.value);
        Ok(Self { body, options })
    }

    pub(super) fn weight(&self) -> usize {
        self.body.weight
    }

    /// It is meant for one state or one object of this name.
    pub(super) fn names_revision(&self) -> bool {
        let given = |name: &str| self.body.value["metadata"].get(name).is_some();
        given("resourceVersion") || given("uid")
    }

    /// The object with what is wanted, and without what is wanted no more.
    pub(super) fn merge(
        &self,
        kind: &dyn Kind,
        version: Version,
        part: Part,
        mut live: Value,
    ) -> Result<Merged> {
        let entries = live["metadata"].get_mut("managedFields").map(Value::take);
        let mut entries = match entries {
            Some(Value::Array(entries)) => entries,
            _ => Vec::new(),
        };
        let subresource = part.subresource();
        let ours = |entry: &Value| {
            entry["manager"] == self.options.manager.as_str()
                && entry["subresource"].as_str().unwrap_or_default() == subresource
        };
        let own = entries.iter().position(ours).map(|at| entries.remove(at));
        let wanted = fields(&self.owned());
        if !self.options.force {
            self.check_conflicts(kind, &live, &wanted, &entries)?;
        }
        for entry in &mut entries {
            take_over(&mut entry["fieldsV1"], &wanted, &live, &self.body.value);
        }
        if let Some(own) = &own {
            let others: Vec<&Value> = entries.iter().map(|entry| &entry["fieldsV1"]).collect();
            remove(&mut live, &own["fieldsV1"], &wanted, &others);
        }
        overlay(&mut live, &self.body.value);

        entries.retain(|entry| entry["fieldsV1"].as_object().is_some_and(|set| !set.is_empty()));
        let entry = match own {
            Some(own) if own["fieldsV1"] == wanted => own,
            _ => {
                let mut entry = json!({
                    "manager": self.options.manager,
                    "operation": "Apply",
                    "apiVersion": kind.api_version(version),
                    "time": meta::now(),
                    "fieldsType": "FieldsV1",
                    "fieldsV1": wanted,
                });
                if !subresource.is_empty() {
                    entry["subresource"] = json!(subresource);
                }
                entry
            }
        };
        entries.push(entry);
        entries.sort_by_key(|entry| entry["manager"].as_str().unwrap_or_default().to_owned());
        Ok(Merged { object: live.into(), managed: entries.into() })
    }

    /// The body without what names the object.
    fn owned(&self) -> Value {
        let mut body = self.body.value.clone();
        if let Some(fields) = body.as_object_mut() {
            fields.remove("apiVersion");
            fields.remove("kind");
        }
        if let Some(metadata) = body.get_mut("metadata").and_then(Value::as_object_mut) {
            for name in ["name", "namespace", "generateName", "uid", "resourceVersion"] {
                metadata.remove(name);
            }
            for name in ["creationTimestamp", "generation", "selfLink", "deletionTimestamp"] {
                metadata.remove(name);
            }
            if metadata.is_empty()
                && let Some(fields) = body.as_object_mut()
            {
                fields.remove("metadata");
            }
        }
        body
    }

    /// 409 when another manager applied another value.
    fn check_conflicts(
        &self,
        kind: &dyn Kind,
        live: &Value,
        wanted: &Value,
        others: &[Value],
    ) -> Result<()> {
        let mut found = Vec::new();
        for entry in others {
            let mut paths = Vec::new();
            conflicts(wanted, &entry["fieldsV1"], live, &self.body.value, "", &mut paths);
            let manager = entry["manager"].as_str().unwrap_or_default();
            found.extend(paths.into_iter().map(|path| (manager.to_owned(), path)));
        }
        let Some((manager, _)) = found.first() else { return Ok(()) };
        let resource = Resource { group: kind.group(), resource: kind.plural() };
        let paths: Vec<&str> = found.iter().map(|(_, path)| path.as_str()).collect();
        let why = format!(
            "Apply failed with {} conflict{}: conflict with {manager:?}: {}",
            found.len(),
            if found.len() == 1 { "" } else { "s" },
            paths.join(", ")
        );
        let name = self.body.value["metadata"]["name"].as_str().unwrap_or_default();
        Err(ApiError::apply_conflict(resource, name, why, &found))
    }
}

/// `null` and absent are one.
fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            fields.values_mut().for_each(drop_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

/// The fields of a value in the form of FieldsV1. What is no object is a leaf.
fn fields(value: &Value) -> Value {
    let Value::Object(object) = value else { return json!({}) };
    object.iter().map(|(name, value)| (format!("f:{name}"), fields(value))).collect()
}

fn is_leaf(set: &Value) -> bool {
    set.as_object().is_none_or(Map::is_empty)
}

/// The members of a set, by the names of the fields.
fn members(set: &Value) -> impl Iterator<Item = (&str, &Value)> {
    let all = set.as_object().into_iter().flatten();
    all.filter_map(|(name, set)| Some((name.strip_prefix("f:")?, set)))
}

fn member<'a>(set: &'a Value, name: &str) -> Option<&'a Value> {
    set.get(format!("f:{name}"))
}

/// Is one value in the way of the other? Objects are merged, so they are not.
fn differ(live: Option<&Value>, body: Option<&Value>) -> bool {
    let objects = live.is_some_and(Value::is_object) && body.is_some_and(Value::is_object);
    !objects && live != body
}

/// Leaves of `wanted` that another one owns with another value.
fn conflicts(
    wanted: &Value,
    theirs: &Value,
    live: &Value,
    body: &Value,
    path: &str,
    found: &mut Vec<String>,
) {
    for (name, wanted) in members(wanted) {
        let Some(theirs) = member(theirs, name) else { continue };
        let path = format!("{path}.{name}");
        if is_leaf(wanted) || is_leaf(theirs) {
            if differ(live.get(name), body.get(name)) {
                found.push(path);
            }
        } else {
            conflicts(wanted, theirs, &live[name], &body[name], &path, found);
        }
    }
}

/// Takes from another's set what is given another value now.
fn take_over(theirs: &mut Value, wanted: &Value, live: &Value, body: &Value) {
    for (name, wanted) in members(wanted) {
        let key = format!("f:{name}");
        let Some(inner) = theirs.get_mut(&key) else { continue };
        let gone = if is_leaf(wanted) || is_leaf(inner) {
            differ(live.get(name), body.get(name))
        } else {
            take_over(inner, wanted, &live[name], &body[name]);
            is_leaf(inner)
        };
        if gone && let Some(theirs) = theirs.as_object_mut() {
            theirs.remove(&key);
        }
    }
}

/// Removes what was owned before, is wanted no more, and is owned by nobody else.
fn remove(live: &mut Value, before: &Value, wanted: &Value, others: &[&Value]) {
    let Some(object) = live.as_object_mut() else { return };
    for (name, before) in members(before) {
        let others: Vec<&Value> = others.iter().filter_map(|set| member(set, name)).collect();
        match member(wanted, name) {
            Some(_) if is_leaf(before) => {}
            Some(wanted) => {
                if let Some(inner) = object.get_mut(name) {
                    remove(inner, before, wanted, &others);
                }
            }
            None if is_leaf(before) => {
                if others.is_empty() {
                    object.remove(name);
                }
            }
            None => {
                let Some(inner) = object.get_mut(name) else { continue };
                remove(inner, before, &Value::Null, &others);
                if inner.as_object().is_some_and(Map::is_empty) && others.is_empty() {
                    object.remove(name);
                }
            }
        }
    }
}

/// Writes everything that the body says over the object.
fn overlay(live: &mut Value, body: &Value) {
    match (live, body) {
        (Value::Object(live), Value::Object(body)) => {
            for (name, value) in body {
                overlay(live.entry(name).or_insert(Value::Null), value);
            }
        }
        (live, body) => *live = body.clone(),
    }
}

impl Registry {
    /// Makes the object what its manager wants, or creates it so; says whether it was created.
    pub async fn apply(
        &self,
        call: &mut Call<'_>,
        name: &str,
        part: Part,
        apply: &Apply,
        options: WriteOptions,
    ) -> Result<(Object, bool)> {
        let mut attempt = 1;
        loop {
            let missing = match self.update(call, name, part, Change::Apply(apply), options).await {
                Err(error) if error.reason() == "NotFound" && part == Part::Main => error,
                updated => return Ok((updated?, false)),
            };
            if apply.names_revision() {
                // It was there once, in the version that is meant.
                return Err(ApiError::modified(self.resource(), name));
            }
            let new = json!({"metadata": {"name": name}});
            let Merged { object, managed } = apply.merge(self.kind(), call.version, part, new)?;
            match self.create_managed(call, object, Some(managed), options).await {
                Err(error) if error.reason() == "AlreadyExists" && attempt < ATTEMPTS => {
                    attempt += 1;
                }
                // A namespace that is missing says more than the object that is.
                Err(error) if error.reason() == "NotFound" && attempt == ATTEMPTS => {
                    return Err(missing);
                }
                created => return Ok((created?, true)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Live object and the sets of two managers.
    fn applied(live: &Value, before: &Value, wanted: &Value, other: &Value) -> Value {
        let mut live = live.clone();
        remove(&mut live, &fields(before), &fields(wanted), &[&fields(other)]);
        overlay(&mut live, wanted);
        live
    }

    #[test]
    fn what_is_wanted_no_more_goes_away_and_what_others_wrote_stays() {
        let none = json!({});
        let rows = [
            (
                json!({"a": 1, "b": 2}),
                json!({"a": 1, "b": 2}),
                json!({"a": 1}),
                &none,
                json!({"a": 1}),
            ),
            (
                json!({"a": 1, "b": 2}),
                json!({"a": 1}),
                json!({"a": 1}),
                &none,
                json!({"a": 1, "b": 2}),
            ),
            (json!({"s": {"a": 1}}), json!({"s": {"a": 1}}), json!({}), &none, json!({})),
            (
                json!({"s": {"a": 1, "x": 2}}),
                json!({"s": {"a": 1}}),
                json!({}),
                &none,
                json!({"s": {"x": 2}}),
            ),
            (
                json!({"l": [1, 2]}),
                json!({"l": [1, 2]}),
                json!({"l": [2]}),
                &none,
                json!({"l": [2]}),
            ),
            (json!({"e": {}}), json!({"e": {}}), json!({}), &none, json!({})),
            (
                json!({"s": {"a": 1}}),
                json!({"s": {"a": 1}}),
                json!({"s": {}}),
                &none,
                json!({"s": {}}),
            ),
            (
                json!({"e": {"x": 1}}),
                json!({"e": {}}),
                json!({"e": {}}),
                &none,
                json!({"e": {"x": 1}}),
            ),
        ];
        for (live, before, wanted, other, expected) in rows {
            assert_eq!(applied(&live, &before, &wanted, other), expected, "{before} → {wanted}");
        }
        let both = json!({"a": 1});
        assert_eq!(applied(&both, &both, &none, &both), both, "another one applied it, too");
    }

    #[test]
    fn another_value_of_anothers_field_is_a_conflict() {
        let (theirs, live) = (json!({"s": {"a": 1, "b": 1}}), json!({"s": {"a": 1, "b": 1}}));
        let body = json!({"s": {"a": 2, "b": 1, "c": 3}});
        let mut found = Vec::new();
        conflicts(&fields(&body), &fields(&theirs), &live, &body, "", &mut found);
        assert_eq!(found, [".s.a"]);
        let mut set = fields(&theirs);
        take_over(&mut set, &fields(&body), &live, &body);
        assert_eq!(set, fields(&json!({"s": {"b": 1}})));
    }
}
