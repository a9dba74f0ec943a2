//! `install check`: checks whether Navigator is installed, answers, and may be used.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::{
    apps::v1::Deployment,
    authorization::v1::{
        ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
        SubjectAccessReview, SubjectAccessReviewSpec,
    },
    rbac::v1::PolicyRule,
    storage::v1::StorageClass,
};
use kube::{
    Api,
    api::{ApiResource, DynamicObject, ListParams, PostParams},
};
use serde_json::{Value, json};

use super::{
    error::said,
    lookup::PluginSession,
    text::{OutputStyle, Screen, TextTable, Tone, cell},
};
use crate::{
    api::{GROUP, VERSIONS, names, printer::text},
    engine::rbac,
    machinery::served_kind::{ServedKind, ServedVersion},
    runtime::build_info,
};

/// Names of an install's Deployments, and their titles in messages.
const COMPONENTS: &[(&str, &str)] =
    &[(names::APISERVER, "API server"), (names::CONTROLLER, "controller")];

/// API group of APIServices, by which kube-apiserver knows other API servers.
const REGISTRATION: &str = "apiregistration.k8s.io";

fn image(deployment: &Deployment) -> Option<String> {
    let pod = deployment.spec.as_ref()?.template.spec.as_ref()?;
    pod.containers.first()?.image.clone()
}

/// The outcome of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckOutcome {
    Good,
    /// The check passed with a remark.
    Odd,
    /// The check failed.
    Bad,
    /// The result is unknown, because the user has no right to read what the check needs.
    Unknown,
}

impl CheckOutcome {
    fn word(self) -> &'static str {
        match self {
            Self::Good => "ok",
            Self::Odd => "look",
            Self::Bad => "FAILED",
            Self::Unknown => "unknown",
        }
    }

    fn tone(self) -> Tone {
        match self {
            Self::Good => Tone::Good,
            Self::Odd => Tone::Care,
            Self::Bad => Tone::Bad,
            Self::Unknown => Tone::Faint,
        }
    }
}

/// The result of one check, one line of the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckResult {
    pub name: String,
    pub outcome: CheckOutcome,
    /// What was found, and what to do where the check failed.
    pub message: String,
}

fn checked(
    name: impl Into<String>,
    outcome: CheckOutcome,
    message: impl Into<String>,
) -> CheckResult {
    CheckResult { name: name.into(), outcome, message: message.into() }
}

/// Returns the result of a check whose request failed.
fn failed(name: &str, error: &kube::Error) -> CheckResult {
    let forbidden = matches!(error, kube::Error::Api(status) if status.code == 403);
    let outcome = if forbidden { CheckOutcome::Unknown } else { CheckOutcome::Bad };
    checked(name, outcome, said(error))
}

/// Returns whether no check failed.
pub fn is_good(all: &[CheckResult]) -> bool {
    all.iter().all(|one| one.outcome != CheckOutcome::Bad)
}

pub fn table(all: &[CheckResult], style: OutputStyle) -> String {
    let mut table = TextTable::new(&[("RESULT", 0), ("CHECK", 0), ("FOUND", 0)]);
    for one in all {
        table.push(vec![
            cell(one.outcome.word(), one.outcome.tone()),
            one.name.as_str().into(),
            one.message.as_str().into(),
        ]);
    }
    let mut screen = Screen::new(style);
    screen.table(0, &table);
    screen.finish()
}

pub fn json(all: &[CheckResult]) -> Value {
    let one = |one: &CheckResult| json!({"name": one.name, "result": one.outcome.word(), "message": one.message});
    json!({"checks": all.iter().map(one).collect::<Vec<_>>()})
}

impl PluginSession {
    /// Checks the install in the namespace `install`. Later checks are left out where an earlier
    /// one says that they cannot pass.
    pub async fn check(&self, install: &str) -> Vec<CheckResult> {
        let mut all = Vec::new();
        match self.client.apiserver_version().await {
            Ok(info) => all.push(checked("Kubernetes", CheckOutcome::Good, info.git_version)),
            Err(error) => return vec![failed("Kubernetes", &error)],
        }
        let mut served = true;
        for version in VERSIONS {
            let one = self.api_service(version).await;
            served &= one.outcome != CheckOutcome::Bad;
            all.push(one);
        }
        if !served && self.serves_itself().await {
            let message =
                "serves Navigator's kinds by itself, with no install, as `navigator local`";
            all.truncate(1);
            return all.into_iter().chain([checked("API", CheckOutcome::Good, message)]).collect();
        }
        for (name, component) in COMPONENTS {
            all.push(self.deployment(install, name, component).await);
        }
        if served {
            all.push(self.kinds_served().await);
            all.extend(self.own_rights().await);
        }
        all.push(self.controller_rights(install).await);
        all.push(self.webhooks().await);
        all.push(self.storage_class().await);
        all
    }

    /// Does the API server serve our kinds itself, without an aggregation layer?
    async fn serves_itself(&self) -> bool {
        let groups = self.client.list_api_groups().await;
        let has =
            |name| groups.as_ref().is_ok_and(|all| all.groups.iter().any(|it| it.name == name));
        has(GROUP) && !has(REGISTRATION)
    }

    async fn api_service(&self, version: ServedVersion) -> CheckResult {
        let name = format!("APIService {version}");
        let resource = ApiResource {
            group: REGISTRATION.to_owned(),
            version: "v1".to_owned(),
            api_version: "apiregistration.k8s.io/v1".to_owned(),
            kind: "APIService".to_owned(),
            plural: "apiservices".to_owned(),
        };
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource);
        let service = match api.get_opt(&format!("{version}.{GROUP}")).await {
            Ok(Some(service)) => service.data,
            Ok(None) => {
                let way = "is not there; `kubectl navigator install generate | kubectl apply \
                           --server-side -f -` installs Navigator";
                return checked(name, CheckOutcome::Bad, way);
            }
            Err(error) => return failed(&name, &error),
        };
        let conditions = service.pointer("/status/conditions").and_then(Value::as_array);
        let available =
            conditions.into_iter().flatten().find(|one| text(one, "/type") == "Available");
        match available {
            Some(one) if text(one, "/status") == "True" => {}
            Some(one) => {
                let why = format!("{}: {}", text(one, "/reason"), text(one, "/message"));
                return checked(name, CheckOutcome::Bad, why);
            }
            None => {
                return checked(
                    name,
                    CheckOutcome::Bad,
                    "its status does not say that it is available",
                );
            }
        }
        if service.pointer("/spec/insecureSkipTLSVerify") == Some(&json!(true)) {
            let way = "is available, and kube-apiserver does not verify whom it asks: take \
                       insecureSkipTLSVerify out of it";
            return checked(name, CheckOutcome::Odd, way);
        }
        checked(name, CheckOutcome::Good, "is available")
    }

    async fn deployment(&self, install: &str, name: &str, component: &str) -> CheckResult {
        let api: Api<Deployment> = Api::namespaced(self.client.clone(), install);
        let deployment = match api.get_opt(name).await {
            Ok(Some(deployment)) => deployment,
            Ok(None) => {
                let message = format!("there is no Deployment {name} in namespace {install}");
                return checked(component, CheckOutcome::Bad, message);
            }
            Err(error) => return failed(component, &error),
        };
        let image = image(&deployment).unwrap_or_default();
        let wanted = deployment.spec.and_then(|spec| spec.replicas).unwrap_or(1);
        let ready = deployment.status.and_then(|status| status.ready_replicas).unwrap_or(0);
        let message = format!("{ready} of {wanted} ready, {image}");
        if ready == 0 {
            return checked(component, CheckOutcome::Bad, message);
        }
        match skew(&image) {
            Some(skew) => checked(component, CheckOutcome::Odd, format!("{message}: {skew}")),
            None if ready < wanted => checked(component, CheckOutcome::Odd, message),
            None => checked(component, CheckOutcome::Good, message),
        }
    }

    /// Returns the images that run in the namespace `install`, by component; none where the user
    /// may not read them.
    pub async fn images(&self, install: &str) -> BTreeMap<String, String> {
        let api: Api<Deployment> = Api::namespaced(self.client.clone(), install);
        let mut images = BTreeMap::new();
        for (name, component) in COMPONENTS {
            if let Ok(Some(deployment)) = api.get_opt(name).await {
                images.extend(image(&deployment).map(|image| ((*component).to_owned(), image)));
            }
        }
        images
    }

    async fn kinds_served(&self) -> CheckResult {
        const NAME: &str = "kinds";
        let version = format!("{GROUP}/{}", VERSIONS[0]);
        let list = match self.client.list_api_group_resources(&version).await {
            Ok(list) => list,
            Err(error) => return failed(NAME, &error),
        };
        let served: BTreeSet<&str> = list.resources.iter().map(|one| one.kind.as_str()).collect();
        let known: Vec<&str> = self.scheme.kinds().iter().map(|kind| kind.kind()).collect();
        let missing: Vec<&str> =
            known.iter().copied().filter(|kind| !served.contains(kind)).collect();
        if missing.is_empty() {
            checked(NAME, CheckOutcome::Good, known.join(", "))
        } else {
            let message = format!("{} not served: the API server is older?", missing.join(", "));
            checked(NAME, CheckOutcome::Odd, message)
        }
    }

    /// Checks what the user may do in the namespace.
    async fn own_rights(&self) -> Vec<CheckResult> {
        let plurals: Vec<&str> = self.scheme.clusters().map(ServedKind::plural).collect();
        let mut all = Vec::new();
        for (name, verbs, pilots) in [
            ("you may look", &["get", "list", "watch"][..], &["get", "list", "watch"][..]),
            ("you may change", &["create", "patch", "delete"], &["patch"]),
        ] {
            let asked = plurals.iter().map(|plural| (*plural, verbs)).chain([("pilots", pilots)]);
            let (mut refused, mut failure) = (Vec::new(), None);
            for (plural, verbs) in asked {
                let mut denied = Vec::new();
                for verb in verbs {
                    match self.may_i(plural, verb).await {
                        Ok(true) => {}
                        Ok(false) => denied.push(*verb),
                        Err(error) => failure = Some(failed(name, &error)),
                    }
                }
                if !denied.is_empty() {
                    refused.push(format!("{} {plural}", denied.join("/")));
                }
            }
            all.push(match failure {
                Some(failure) => failure,
                None if refused.is_empty() => {
                    let message = format!("in namespace {}", self.namespace);
                    checked(name, CheckOutcome::Good, message)
                }
                None => {
                    let message = format!(
                        "not in namespace {}: {}; the roles view and edit allow it",
                        self.namespace,
                        refused.join(", ")
                    );
                    checked(name, CheckOutcome::Odd, message)
                }
            });
        }
        all
    }

    async fn may_i(&self, plural: &str, verb: &str) -> Result<bool, kube::Error> {
        let review = SelfSubjectAccessReview {
            spec: SelfSubjectAccessReviewSpec {
                resource_attributes: Some(ResourceAttributes {
                    group: Some(GROUP.to_owned()),
                    resource: Some(plural.to_owned()),
                    verb: Some(verb.to_owned()),
                    namespace: Some(self.namespace.clone()),
                    ..ResourceAttributes::default()
                }),
                ..SelfSubjectAccessReviewSpec::default()
            },
            ..SelfSubjectAccessReview::default()
        };
        let api: Api<SelfSubjectAccessReview> = Api::all(self.client.clone());
        let answer = api.create(&PostParams::default(), &review).await?;
        Ok(answer.status.is_some_and(|status| status.allowed))
    }

    /// Checks that the controller has the rights that the manifest gives it, with one question for
    /// each verb of each rule.
    async fn controller_rights(&self, install: &str) -> CheckResult {
        const NAME: &str = "rights of the controller";
        let plurals: Vec<&str> = self.scheme.clusters().map(ServedKind::plural).collect();
        let user = format!("system:serviceaccount:{install}:{}", names::CONTROLLER);
        let mut refused = Vec::new();
        let everywhere = rbac::controller_rules(&plurals);
        let everywhere = everywhere.iter().map(|rule| (rule, &*self.namespace));
        let own = rbac::controller_install_rules();
        for (rule, namespace) in everywhere.chain(own.iter().map(|rule| (rule, install))) {
            for asked in questions(rule, namespace) {
                let what = format!(
                    "{} {} in namespace {namespace}",
                    asked.verb.as_deref().unwrap_or_default(),
                    asked.resource.as_deref().unwrap_or_default()
                );
                let review = SubjectAccessReview {
                    spec: SubjectAccessReviewSpec {
                        user: Some(user.clone()),
                        resource_attributes: Some(asked),
                        ..SubjectAccessReviewSpec::default()
                    },
                    ..SubjectAccessReview::default()
                };
                let api: Api<SubjectAccessReview> = Api::all(self.client.clone());
                match api.create(&PostParams::default(), &review).await {
                    Ok(answer) if answer.status.as_ref().is_some_and(|status| status.allowed) => {}
                    Ok(_) => refused.push(what),
                    Err(error) => return failed(NAME, &error),
                }
            }
        }
        if refused.is_empty() {
            let message = format!("as the manifest gives them, in namespace {}", self.namespace);
            return checked(NAME, CheckOutcome::Good, message);
        }
        let message = format!("{user} may not {}: apply the manifest again", refused.join(", "));
        checked(NAME, CheckOutcome::Bad, message)
    }

    /// Checks that no webhook is configured for our kinds in vain: kube-apiserver calls no webhook
    /// for a group that another server serves.
    async fn webhooks(&self) -> CheckResult {
        const NAME: &str = "webhooks";
        let mut ours = Vec::new();
        for (kind, plural) in [
            ("ValidatingWebhookConfiguration", "validatingwebhookconfigurations"),
            ("MutatingWebhookConfiguration", "mutatingwebhookconfigurations"),
        ] {
            let resource = ApiResource {
                group: "admissionregistration.k8s.io".to_owned(),
                version: "v1".to_owned(),
                api_version: "admissionregistration.k8s.io/v1".to_owned(),
                kind: kind.to_owned(),
                plural: plural.to_owned(),
            };
            let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource);
            let list = match api.list(&ListParams::default()).await {
                Ok(list) => list,
                Err(error) => return failed(NAME, &error),
            };
            let names_us = |object: &&DynamicObject| {
                let hooks = object.data.get("webhooks").and_then(Value::as_array);
                let rules = hooks.into_iter().flatten().filter_map(|hook| hook.get("rules"));
                let rules = rules.filter_map(Value::as_array).flatten();
                let groups =
                    rules.filter_map(|rule| rule.get("apiGroups")).filter_map(Value::as_array);
                groups.flatten().any(|group| group == GROUP)
            };
            ours.extend(
                list.items.iter().filter(names_us).filter_map(|one| one.metadata.name.clone()),
            );
        }
        if ours.is_empty() {
            return checked(NAME, CheckOutcome::Good, "no configuration names our group");
        }
        let message = format!("Navigator's API server asks those of {}", ours.join(", "));
        checked(NAME, CheckOutcome::Good, message)
    }

    async fn storage_class(&self) -> CheckResult {
        const NAME: &str = "storage class";
        const DEFAULT: &str = "storageclass.kubernetes.io/is-default-class";
        let api: Api<StorageClass> = Api::all(self.client.clone());
        let list = match api.list(&ListParams::default()).await {
            Ok(list) => list,
            Err(error) => return failed(NAME, &error),
        };
        let default = list.items.iter().find(|class| {
            class
                .metadata
                .annotations
                .as_ref()
                .is_some_and(|all| all.get(DEFAULT).is_some_and(|value| value == "true"))
        });
        match default.and_then(|class| class.metadata.name.clone()) {
            Some(name) => checked(NAME, CheckOutcome::Good, format!("{name} is the default")),
            None => checked(
                NAME,
                CheckOutcome::Odd,
                "none is the default: name one in persistence.storageClass of each node pool",
            ),
        }
    }
}

/// Returns questions for each verb of a rule on its first resource; the rule grants its other
/// resources alike.
fn questions(rule: &PolicyRule, namespace: &str) -> Vec<ResourceAttributes> {
    let group = rule.api_groups.iter().flatten().next().cloned();
    let resource = rule.resources.iter().flatten().next().cloned().unwrap_or_default();
    let (resource, subresource) = match resource.split_once('/') {
        Some((resource, sub)) => (resource.to_owned(), Some(sub.to_owned())),
        None => (resource, None),
    };
    let name = rule.resource_names.iter().flatten().next().cloned();
    let ask = |verb: &String| ResourceAttributes {
        group: group.clone(),
        resource: Some(resource.clone()),
        subresource: subresource.clone(),
        name: name.clone(),
        verb: Some(verb.clone()),
        namespace: Some(namespace.to_owned()),
        ..ResourceAttributes::default()
    };
    rule.verbs.iter().map(ask).collect()
}

/// Returns a remark if an image is of another version than this plugin.
fn skew(image: &str) -> Option<String> {
    let tag = image.split('@').next()?.rsplit_once(':')?.1;
    let version = tag.strip_prefix('v').filter(|_| !tag.contains('/'))?;
    let differs =
        version != build_info::VERSION && version.starts_with(|c: char| c.is_ascii_digit());
    differs.then(|| format!("this plugin is v{}", build_info::VERSION))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_image_of_another_version_is_odd() {
        let own = format!("quay.io/x/navigator:v{}", build_info::VERSION);
        assert_eq!(skew(&own), None);
        assert_eq!(skew("quay.io/x/navigator:latest"), None);
        assert_eq!(skew("host:5000/navigator"), None);
        assert_eq!(skew("navigator@sha256:00"), None);
        assert!(skew("navigator:v0.0.1@sha256:00").is_some());
    }

    #[test]
    fn each_verb_of_a_rule_is_asked_for() {
        let rules = rbac::controller_rules(&["exampleclusters"]);
        let rules: Vec<_> = rules.into_iter().chain(rbac::controller_install_rules()).collect();
        let asked: Vec<_> = rules.iter().flat_map(|rule| questions(rule, "db")).collect();
        let status = asked.iter().find(|one| one.subresource.as_deref() == Some("status")).unwrap();
        assert_eq!(status.resource.as_deref(), Some("exampleclusters"));
        assert!(asked.iter().any(|one| one.name.as_deref() == Some(names::STORE_CONFIG_MAP)));
        assert!(asked.iter().all(|one| one.verb.is_some()));
    }
}
