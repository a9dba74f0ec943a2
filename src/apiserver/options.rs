//! Options of requests, from query and body, and what is wrong with them.
//!
//! Owns ListOptions, GetOptions, the options of writes and DeleteOptions: their defaults and their
//! validation (apimachinery `pkg/apis/meta/v1/validation`). Options that cannot be read are 400,
//! options that contradict themselves are 422 in upstream's wording.

use std::time::Duration;

use serde_json::{Value, json};

use super::{
    status::{ApiError, Result},
    storage::Revision,
    url::{Query, parse_bool},
};
use crate::machinery::field_error::{ErrorList, FieldError, FieldErrorKind, FieldPath};

/// Most seconds that a watch lasts, whatever its client asks for: a user who loses a right loses by
/// then the watches that were begun with it.
const LONGEST_TIMEOUT: u64 = 3600;

/// Which state a read may show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadConsistency {
    /// The latest state, as of the time of the request.
    Latest,
    /// Any state that the cache has.
    Any,
    /// The state at this revision or at a later one.
    NotOlderThan(Revision),
    /// The state at exactly this revision.
    Exact(Revision),
}

/// Values of `resourceVersionMatch`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResourceVersionMatch {
    Exact,
    NotOlderThan,
}

/// Options of list, watch and deletecollection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListOptions {
    pub label_selector: String,
    pub field_selector: String,
    pub watch: bool,
    pub allow_watch_bookmarks: bool,
    pub resource_version: String,
    pub resource_version_match: Option<ResourceVersionMatch>,
    pub timeout: Option<Duration>,
    /// Most objects of a page; 0 is no limit.
    pub limit: usize,
    pub continue_token: String,
    pub send_initial_events: Option<bool>,
}

impl ListOptions {
    const KEYS: [&str; 9] = [
        "labelSelector",
        "fieldSelector",
        "allowWatchBookmarks",
        "resourceVersion",
        "resourceVersionMatch",
        "timeoutSeconds",
        "limit",
        "continue",
        "sendInitialEvents",
    ];

    /// Reads and validates the options. `watch`: the request is a watch. The first value counts of
    /// a key that is given more than once.
    pub fn parse(query: &Query, watch: bool) -> Result<Self> {
        let mut options = Self { watch, ..Self::default() };
        let mut errors = ErrorList::new();
        let mut unseen_keys = Self::KEYS.to_vec();
        for (key, value) in query.pairs() {
            let Some(index) = unseen_keys.iter().position(|option_key| *option_key == key) else {
                continue;
            };
            unseen_keys.swap_remove(index);
            match key {
                "labelSelector" => value.clone_into(&mut options.label_selector),
                "fieldSelector" => value.clone_into(&mut options.field_selector),
                "allowWatchBookmarks" => options.allow_watch_bookmarks = parse_bool(value),
                "resourceVersion" => value.clone_into(&mut options.resource_version),
                "resourceVersionMatch" => {
                    options.resource_version_match = match value {
                        "" => None,
                        "Exact" => Some(ResourceVersionMatch::Exact),
                        "NotOlderThan" => Some(ResourceVersionMatch::NotOlderThan),
                        _ => {
                            let supported = if watch {
                                vec!["NotOlderThan".to_owned()]
                            } else {
                                vec!["Exact".to_owned(), "NotOlderThan".to_owned(), String::new()]
                            };
                            let problem = FieldErrorKind::NotSupported(json!(value), supported);
                            errors.push(FieldError::new(&FieldPath::new(key), problem, ""));
                            None
                        }
                    };
                }
                "timeoutSeconds" if !value.is_empty() => {
                    let seconds = parse_integer(value)?;
                    let seconds = u64::try_from(seconds).unwrap_or(0).min(LONGEST_TIMEOUT);
                    options.timeout = (seconds > 0).then(|| Duration::from_secs(seconds));
                }
                "limit" if !value.is_empty() => {
                    options.limit = usize::try_from(parse_integer(value)?).unwrap_or(0);
                }
                "continue" => value.clone_into(&mut options.continue_token),
                "sendInitialEvents" => {
                    options.send_initial_events = Some(parse_bool(value));
                }
                _ => {}
            }
        }
        if options.watch {
            options.validate_watch(&mut errors);
        } else {
            options.validate_list(&mut errors);
        }
        check_errors("ListOptions", &errors)?;
        Ok(options)
    }

    fn validate_list(&self, errors: &mut ErrorList) {
        let path = FieldPath::new("resourceVersionMatch");
        let mut forbid = |path: &FieldPath, detail: &str| {
            errors.push(FieldError::new(path, FieldErrorKind::Forbidden, detail));
        };
        if let Some(version_match) = self.resource_version_match {
            if self.resource_version.is_empty() {
                forbid(
                    &path,
                    "resourceVersionMatch is forbidden unless resourceVersion is provided",
                );
            }
            if !self.continue_token.is_empty() {
                forbid(&path, "resourceVersionMatch is forbidden when continue is provided");
            }
            if version_match == ResourceVersionMatch::Exact && self.resource_version == "0" {
                let detail =
                    "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"";
                forbid(&path, detail);
            }
        }
        if self.send_initial_events.is_some() {
            let path = FieldPath::new("sendInitialEvents");
            forbid(&path, "sendInitialEvents is forbidden for list");
        }
    }

    fn validate_watch(&self, errors: &mut ErrorList) {
        let path = FieldPath::new("resourceVersionMatch");
        let mut add_error = |problem: FieldErrorKind, detail: &str| {
            errors.push(FieldError::new(&path, problem, detail));
        };
        let version_match = self.resource_version_match;
        if self.send_initial_events.is_some()
            && version_match != Some(ResourceVersionMatch::NotOlderThan)
        {
            let detail = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
            add_error(FieldErrorKind::Forbidden, detail);
        }
        if let Some(version_match) = version_match {
            if self.send_initial_events.is_none() {
                let detail = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is \
                     provided";
                add_error(FieldErrorKind::Forbidden, detail);
            }
            if version_match == ResourceVersionMatch::Exact {
                let supported = vec!["NotOlderThan".to_owned()];
                add_error(FieldErrorKind::NotSupported(json!("Exact"), supported), "");
            }
            if !self.continue_token.is_empty() {
                let detail = "resourceVersionMatch is forbidden when continue is provided";
                add_error(FieldErrorKind::Forbidden, detail);
            }
        }
    }

    /// Returns which state a list without `continue` may show.
    pub fn read_at(&self) -> Result<ReadConsistency> {
        let Some(revision) = parse_revision(&self.resource_version)? else {
            return Ok(ReadConsistency::Latest);
        };
        Ok(match self.resource_version_match {
            Some(ResourceVersionMatch::Exact) => ReadConsistency::Exact(revision),
            _ if revision == Revision(0) => ReadConsistency::Any,
            // A limit with a revision means exactly that revision, as upstream since paging exists.
            None if self.limit > 0 => ReadConsistency::Exact(revision),
            Some(ResourceVersionMatch::NotOlderThan) | None => {
                ReadConsistency::NotOlderThan(revision)
            }
        })
    }
}

/// Returns which state a get may show.
pub fn get_read_at(query: &Query) -> Result<ReadConsistency> {
    Ok(match parse_revision(query.text("resourceVersion"))? {
        None => ReadConsistency::Latest,
        Some(Revision(0)) => ReadConsistency::Any,
        Some(revision) => ReadConsistency::NotOlderThan(revision),
    })
}

/// Parses a `resourceVersion`; `None` when `text` is empty.
pub fn parse_revision(text: &str) -> Result<Option<Revision>> {
    if text.is_empty() {
        return Ok(None);
    }
    let number = text.parse().map_err(|_| {
        ApiError::bad_request(format!(
            "invalid resource version: resourceVersion: Invalid value: {text:?}: must be a decimal \
             number"
        ))
    })?;
    Ok(Some(Revision(number)))
}

/// What happens with unknown and duplicate fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FieldValidation {
    Ignore,
    #[default]
    Warn,
    Strict,
}

/// Options of create, update and patch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteOptions {
    pub dry_run: bool,
    pub field_validation: FieldValidation,
}

impl WriteOptions {
    /// `kind` is `CreateOptions`, `UpdateOptions`, `PatchOptions` or, for apply, `ApplyOptions`.
    pub fn parse(query: &Query, kind: &str) -> Result<Self> {
        let mut options = Self::default();
        let mut errors = ErrorList::new();
        for manager in query.values("fieldManager") {
            validate_manager(manager, &mut errors);
        }
        if kind == "PatchOptions" && query.values("force").any(parse_bool) {
            let detail = "may not be specified for non-apply patch";
            errors.push(FieldError::new(
                &FieldPath::new("force"),
                FieldErrorKind::Forbidden,
                detail,
            ));
        }
        let dry_run: Vec<_> = query.values("dryRun").map(str::to_owned).collect();
        options.dry_run = validate_dry_run(&dry_run, &mut errors);
        options.field_validation = match query.get("fieldValidation") {
            None | Some("" | "Warn") => FieldValidation::Warn,
            Some("Ignore") => FieldValidation::Ignore,
            Some("Strict") => FieldValidation::Strict,
            Some(other) => {
                let supported = ["", "Ignore", "Strict", "Warn"].map(str::to_owned).to_vec();
                let problem = FieldErrorKind::NotSupported(json!(other), supported);
                errors.push(FieldError::new(&FieldPath::new("fieldValidation"), problem, ""));
                FieldValidation::Warn
            }
        };
        check_errors(kind, &errors)?;
        Ok(options)
    }
}

/// Options of server-side apply in addition to those of every write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApplyOptions {
    pub manager: String,
    pub force: bool,
}

impl ApplyOptions {
    /// Reads the options of an apply, with those that every write has.
    pub fn parse(query: &Query) -> Result<(WriteOptions, Self)> {
        let write_options = WriteOptions::parse(query, "ApplyOptions")?;
        let manager = query.text("fieldManager").to_owned();
        if manager.is_empty() {
            let path = FieldPath::new("fieldManager");
            let error =
                FieldError::new(&path, FieldErrorKind::Required, "is required for apply patch");
            check_errors("PatchOptions", &vec![error])?;
        }
        Ok((write_options, Self { manager, force: query.is_set("force") }))
    }
}

/// What becomes of the objects that an object owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeletionPropagation {
    Orphan,
    Background,
    Foreground,
}

/// `metav1.DeleteOptions`
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeleteOptions {
    pub dry_run: bool,
    pub uid: Option<String>,
    pub resource_version: Option<String>,
    pub propagation: Option<DeletionPropagation>,
    /// The deprecated form of `propagation`; it decides between 200 and 202 as well.
    pub orphan_dependents: Option<bool>,
    /// Grace period in seconds, never negative; absent for the object's own.
    pub grace_period: Option<i64>,
}

impl DeleteOptions {
    /// Reads the options from the body, or from the query when there is no body. But `dryRun`
    /// counts in both: upstream would permanently delete what was meant as a trial.
    pub fn parse(query: &Query, body: Option<&Value>) -> Result<Self> {
        let from_query;
        let document = if let Some(body) = body {
            body
        } else {
            from_query = delete_query(query)?;
            &from_query
        };
        let type_error = |field: &str| {
            ApiError::bad_request(format!(
                "DeleteOptions in version \"v1\" cannot be handled as a DeleteOptions: {field} has \
                 the wrong type"
            ))
        };
        let text = |value: &Value, name: &str| match value {
            Value::Null => Ok(None),
            Value::String(text) => Ok(Some(text.clone())),
            _ => Err(type_error(name)),
        };
        if !document.is_object() {
            return Err(type_error("the body"));
        }
        let mut errors = ErrorList::new();
        let preconditions = &document["preconditions"];
        let mut options = Self {
            uid: text(&preconditions["uid"], "preconditions.uid")?,
            resource_version: text(
                &preconditions["resourceVersion"],
                "preconditions.resourceVersion",
            )?,
            ..Self::default()
        };
        options.orphan_dependents = match &document["orphanDependents"] {
            Value::Null => None,
            Value::Bool(orphan) => Some(*orphan),
            _ => return Err(type_error("orphanDependents")),
        };
        options.grace_period = match &document["gracePeriodSeconds"] {
            Value::Null => None,
            // A negative period is 1 s, as upstream: the shortest one that does not force the
            // deletion.
            Value::Number(seconds) => seconds.as_i64().map(|s| if s < 0 { 1 } else { s }),
            _ => return Err(type_error("gracePeriodSeconds")),
        };
        let path = FieldPath::new("propagationPolicy");
        let policy = text(&document["propagationPolicy"], "propagationPolicy")?;
        options.propagation = match policy.as_deref() {
            None => None,
            Some("Orphan") => Some(DeletionPropagation::Orphan),
            Some("Background") => Some(DeletionPropagation::Background),
            Some("Foreground") => Some(DeletionPropagation::Foreground),
            Some(other) => {
                let supported = ["Foreground", "Background", "Orphan", "nil"].map(str::to_owned);
                let problem = FieldErrorKind::NotSupported(json!(other), supported.to_vec());
                errors.push(FieldError::new(&path, problem, ""));
                None
            }
        };
        if policy.is_some() && options.orphan_dependents.is_some() {
            let detail = "orphanDependents and deletionPropagation cannot be both set";
            errors.push(FieldError::new(&path, FieldErrorKind::Invalid(json!(policy)), detail));
        }
        let mut dry_run = match &document["dryRun"] {
            Value::Null => Vec::new(),
            Value::Array(list) => list
                .iter()
                .map(|entry| entry.as_str().map(str::to_owned).ok_or_else(|| type_error("dryRun")))
                .collect::<Result<_>>()?,
            _ => return Err(type_error("dryRun")),
        };
        if body.is_some() {
            dry_run.extend(query.values("dryRun").map(str::to_owned));
        }
        options.dry_run = validate_dry_run(&dry_run, &mut errors);
        check_errors("DeleteOptions", &errors)?;
        Ok(options)
    }

    /// Returns the propagation that the request asks for, by `propagation` or `orphan_dependents`.
    pub fn effective_propagation(&self) -> Option<DeletionPropagation> {
        self.propagation.or_else(|| {
            let orphan = self.orphan_dependents?;
            Some(if orphan { DeletionPropagation::Orphan } else { DeletionPropagation::Background })
        })
    }
}

/// Returns the query's parameters in the form of a body.
fn delete_query(query: &Query) -> Result<Value> {
    let mut options = json!({});
    let mut dry_run = Vec::new();
    for (key, value) in query.pairs() {
        match key {
            "propagationPolicy" => options[key] = json!(value),
            "orphanDependents" => options[key] = json!(parse_bool(value)),
            "gracePeriodSeconds" if !value.is_empty() => {
                options[key] = json!(parse_integer(value)?);
            }
            "dryRun" => dry_run.push(value),
            _ => {}
        }
    }
    options["dryRun"] = json!(dry_run);
    Ok(options)
}

fn validate_dry_run(values: &[String], errors: &mut ErrorList) -> bool {
    if values.iter().any(|value| value != "All") {
        let problem = FieldErrorKind::NotSupported(json!(values), vec!["All".to_owned()]);
        errors.push(FieldError::new(&FieldPath::new("dryRun"), problem, ""));
    }
    !values.is_empty()
}

fn validate_manager(name: &str, errors: &mut ErrorList) {
    let path = FieldPath::new("fieldManager");
    if name.len() > 128 {
        errors.push(FieldError::new(&path, FieldErrorKind::TooLong(128), ""));
    }
    if name.chars().any(char::is_control) {
        let detail = "should only contain printable characters";
        errors.push(FieldError::new(&path, FieldErrorKind::Invalid(json!(name)), detail));
    }
}

fn check_errors(kind: &str, errors: &ErrorList) -> Result<()> {
    if errors.is_empty() { Ok(()) } else { Err(ApiError::invalid("meta.k8s.io", kind, "", errors)) }
}

fn parse_integer(value: &str) -> Result<i64> {
    value.parse().map_err(|_| {
        ApiError::bad_request(format!("strconv.ParseInt: parsing {value:?}: invalid syntax"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contradictory_list_options_are_422() {
        for (query, watch, text) in [
            ("resourceVersionMatch=Exact", false, "unless resourceVersion is provided"),
            ("resourceVersion=0&resourceVersionMatch=Exact", false, "is forbidden for"),
            ("resourceVersion=5&resourceVersionMatch=Nope", false, "Unsupported value: \"Nope\""),
            ("sendInitialEvents=true", false, "sendInitialEvents is forbidden for list"),
            (
                "resourceVersion=1&resourceVersionMatch=NotOlderThan&continue=x",
                false,
                "when continue is provided",
            ),
            ("sendInitialEvents=true", true, "requires setting resourceVersionMatch"),
            ("resourceVersionMatch=NotOlderThan", true, "unless sendInitialEvents is provided"),
        ] {
            let error = ListOptions::parse(&Query::parse(query), watch).unwrap_err();
            assert_eq!(error.status_code(), 422, "{query}");
            assert!(error.message().contains(text), "{query}: {}", error.message());
            assert!(error.message().starts_with("ListOptions.meta.k8s.io \"\" is invalid: "));
        }
    }

    #[test]
    fn what_a_list_may_show_follows_revision_match_and_limit() {
        for (query, expected) in [
            ("", ReadConsistency::Latest),
            ("resourceVersion=0", ReadConsistency::Any),
            ("resourceVersion=0&limit=5", ReadConsistency::Any),
            ("resourceVersion=7", ReadConsistency::NotOlderThan(Revision(7))),
            ("resourceVersion=7&limit=5", ReadConsistency::Exact(Revision(7))),
            ("resourceVersion=7&resourceVersionMatch=Exact", ReadConsistency::Exact(Revision(7))),
            (
                "resourceVersion=7&limit=5&resourceVersionMatch=NotOlderThan",
                ReadConsistency::NotOlderThan(Revision(7)),
            ),
        ] {
            let options = ListOptions::parse(&Query::parse(query), false).unwrap();
            assert_eq!(options.read_at().unwrap(), expected, "{query}");
        }
        let options = ListOptions::parse(&Query::parse("resourceVersion=x"), false).unwrap();
        assert_eq!(options.read_at().unwrap_err().status_code(), 400);
    }

    #[test]
    fn unreadable_numbers_are_400() {
        assert_eq!(
            ListOptions::parse(&Query::parse("limit=x"), false).unwrap_err().status_code(),
            400
        );
        assert_eq!(
            ListOptions::parse(&Query::parse("timeoutSeconds=1s"), true).unwrap_err().status_code(),
            400
        );
    }

    #[test]
    fn the_first_value_of_a_key_counts() {
        let query = "fieldSelector=&fieldSelector=metadata.name%3Da&limit=1&limit=2&limit=x";
        let options = ListOptions::parse(&Query::parse(query), false).unwrap();
        assert_eq!((options.field_selector.as_str(), options.limit), ("", 1));
    }

    #[test]
    fn no_client_gets_more_than_an_hour() {
        let options =
            ListOptions::parse(&Query::parse("timeoutSeconds=9223372036854775807"), true).unwrap();
        assert_eq!(options.timeout, Some(Duration::from_secs(LONGEST_TIMEOUT)));
        assert!(std::time::Instant::now().checked_add(options.timeout.unwrap()).is_some());
    }

    #[test]
    fn delete_options_come_from_the_body_or_else_from_the_query() {
        let query = "propagationPolicy=Orphan&dryRun=All";
        let options = DeleteOptions::parse(&Query::parse(query), None).unwrap();
        assert_eq!(
            (options.propagation, options.dry_run),
            (Some(DeletionPropagation::Orphan), true)
        );
        let body = json!({"preconditions": {"uid": "u"}, "propagationPolicy": "Foreground"});
        let options = DeleteOptions::parse(&Query::parse(query), Some(&body)).unwrap();
        assert_eq!(
            (options.propagation, options.dry_run),
            (Some(DeletionPropagation::Foreground), true)
        );
        assert_eq!(options.uid.as_deref(), Some("u"));
        let both = json!({"orphanDependents": true, "propagationPolicy": "Orphan"});
        assert_eq!(
            DeleteOptions::parse(&Query::parse(""), Some(&both)).unwrap_err().status_code(),
            422
        );
        let wrong = json!({"dryRun": ["Some"]});
        assert_eq!(
            DeleteOptions::parse(&Query::parse(""), Some(&wrong)).unwrap_err().status_code(),
            422
        );
    }

    #[test]
    fn write_options_are_checked() {
        let options = WriteOptions::parse(
            &Query::parse("dryRun=All&fieldValidation=Strict"),
            "CreateOptions",
        );
        let expected = WriteOptions { dry_run: true, field_validation: FieldValidation::Strict };
        assert_eq!(options.unwrap(), expected);
        for query in ["dryRun=some", "fieldValidation=Maybe", "fieldManager=a%0Ab"] {
            let error = WriteOptions::parse(&Query::parse(query), "UpdateOptions").unwrap_err();
            assert!(error.message().starts_with("UpdateOptions.meta.k8s.io"), "{query}");
        }
        assert!(WriteOptions::parse(&Query::parse("force=true"), "PatchOptions").is_err());
        assert!(WriteOptions::parse(&Query::parse("force=true"), "CreateOptions").is_ok());
    }
}
