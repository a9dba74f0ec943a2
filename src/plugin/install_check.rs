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
    error::server_message,
    lookup::PluginSession,
    text::{OutputStyle, Screen, TextTable, Tone, cell},
};
use crate::{
    api::{GROUP, VERSIONS, names, printer::text_at},
    engine::rbac,
    machinery::served_kind::{ServedKind, ServedVersion},
    runtime::build_info,
};

/// Names of an install's Deployments, and their titles in messages.
const COMPONENTS: &[(&str, &str)] =
    &[(names::APISERVER, "API server"), (names::CONTROLLER, "controller")];

/// API group of APIServices, by which kube-apiserver knows other API servers.
const REGISTRATION: &str = "apiregistration.k8s.io";

fn deployment_image(deployment: &Deployment) -> Option<String> {
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

fn check_result(
    name: impl Into<String>,
    outcome: CheckOutcome,
    message: impl Into<String>,
) -> CheckResult {
    CheckResult { name: name.into(), outcome, message: message.into() }
}

/// Returns the result of a check whose request failed.
fn failed_result(name: &str, error: &kube::Error) -> CheckResult {
    let is_forbidden = matches!(error, kube::Error::Api(status) if status.code == 403);
    let outcome = if is_forbidden { CheckOutcome::Unknown } else { CheckOutcome::Bad };
    check_result(name, outcome, server_message(error))
}

/// Returns whether no check failed.
pub fn is_good(results: &[CheckResult]) -> bool {
    results.iter().all(|result| result.outcome != CheckOutcome::Bad)
}

pub fn render_checks(results: &[CheckResult], style: OutputStyle) -> String {
    let mut table = TextTable::new(&[("RESULT", 0), ("CHECK", 0), ("FOUND", 0)]);
    for result in results {
        table.push(vec![
            cell(result.outcome.word(), result.outcome.tone()),
            result.name.as_str().into(),
            result.message.as_str().into(),
        ]);
    }
    let mut screen = Screen::new(style);
    screen.table(0, &table);
    screen.finish()
}

pub fn checks_json(results: &[CheckResult]) -> Value {
    let entry = |result: &CheckResult| json!({"name": result.name, "result": result.outcome.word(), "message": result.message});
    json!({"checks": results.iter().map(entry).collect::<Vec<_>>()})
}

impl PluginSession {
    /// Checks the install in the namespace `install`. Later checks are left out where an earlier
    /// one says that they cannot pass.
    pub async fn check_install(&self, install: &str) -> Vec<CheckResult> {
        let mut results = Vec::new();
        match self.client.apiserver_version().await {
            Ok(info) => {
                results.push(check_result("Kubernetes", CheckOutcome::Good, info.git_version));
            }
            Err(error) => return vec![failed_result("Kubernetes", &error)],
        }
        let mut is_served = true;
        for version in VERSIONS {
            let result = self.check_api_service(version).await;
            is_served &= result.outcome != CheckOutcome::Bad;
            results.push(result);
        }
        if !is_served && self.serves_itself().await {
            let message =
                "serves Navigator's kinds by itself, with no install, as `navigator local`";
            results.truncate(1);
            return results
                .into_iter()
                .chain([check_result("API", CheckOutcome::Good, message)])
                .collect();
        }
        for (name, component) in COMPONENTS {
            results.push(self.check_deployment(install, name, component).await);
        }
        if is_served {
            results.push(self.check_kinds().await);
            results.extend(self.check_user_rights().await);
        }
        results.push(self.check_controller_rights(install).await);
        results.push(self.check_webhooks().await);
        results.push(self.check_storage_class().await);
        results
    }

    /// Does the API server serve our kinds itself, without an aggregation layer?
    async fn serves_itself(&self) -> bool {
        let groups = self.client.list_api_groups().await;
        let has_group = |name| {
            groups.as_ref().is_ok_and(|list| list.groups.iter().any(|group| group.name == name))
        };
        has_group(GROUP) && !has_group(REGISTRATION)
    }

    async fn check_api_service(&self, version: ServedVersion) -> CheckResult {
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
                let message = "is not there; `kubectl navigator install generate | kubectl apply \
                           --server-side -f -` installs Navigator";
                return check_result(name, CheckOutcome::Bad, message);
            }
            Err(error) => return failed_result(&name, &error),
        };
        let conditions = service.pointer("/status/conditions").and_then(Value::as_array);
        let available_condition = conditions
            .into_iter()
            .flatten()
            .find(|condition| text_at(condition, "/type") == "Available");
        match available_condition {
            Some(condition) if text_at(condition, "/status") == "True" => {}
            Some(condition) => {
                let message = format!(
                    "{}: {}",
                    text_at(condition, "/reason"),
                    text_at(condition, "/message")
                );
                return check_result(name, CheckOutcome::Bad, message);
            }
            None => {
                return check_result(
                    name,
                    CheckOutcome::Bad,
                    "its status does not say that it is available",
                );
            }
        }
        if service.pointer("/spec/insecureSkipTLSVerify") == Some(&json!(true)) {
            let message = "is available, and kube-apiserver does not verify whom it asks: take \
                       insecureSkipTLSVerify out of it";
            return check_result(name, CheckOutcome::Odd, message);
        }
        check_result(name, CheckOutcome::Good, "is available")
    }

    async fn check_deployment(&self, install: &str, name: &str, component: &str) -> CheckResult {
        let api: Api<Deployment> = Api::namespaced(self.client.clone(), install);
        let deployment = match api.get_opt(name).await {
            Ok(Some(deployment)) => deployment,
            Ok(None) => {
                let message = format!("there is no Deployment {name} in namespace {install}");
                return check_result(component, CheckOutcome::Bad, message);
            }
            Err(error) => return failed_result(component, &error),
        };
        let image = deployment_image(&deployment).unwrap_or_default();
        let desired_replicas = deployment.spec.and_then(|spec| spec.replicas).unwrap_or(1);
        let ready_replicas =
            deployment.status.and_then(|status| status.ready_replicas).unwrap_or(0);
        let message = format!("{ready_replicas} of {desired_replicas} ready, {image}");
        if ready_replicas == 0 {
            return check_result(component, CheckOutcome::Bad, message);
        }
        match version_skew(&image) {
            Some(skew) => check_result(component, CheckOutcome::Odd, format!("{message}: {skew}")),
            None if ready_replicas < desired_replicas => {
                check_result(component, CheckOutcome::Odd, message)
            }
            None => check_result(component, CheckOutcome::Good, message),
        }
    }

    /// Returns the images that run in the namespace `install`, by component; none where the user
    /// may not read them.
    pub async fn list_images(&self, install: &str) -> BTreeMap<String, String> {
        let api: Api<Deployment> = Api::namespaced(self.client.clone(), install);
        let mut images = BTreeMap::new();
        for (name, component) in COMPONENTS {
            if let Ok(Some(deployment)) = api.get_opt(name).await {
                images.extend(
                    deployment_image(&deployment).map(|image| ((*component).to_owned(), image)),
                );
            }
        }
        images
    }

    async fn check_kinds(&self) -> CheckResult {
        const NAME: &str = "kinds";
        let version = format!("{GROUP}/{}", VERSIONS[0]);
        let list = match self.client.list_api_group_resources(&version).await {
            Ok(list) => list,
            Err(error) => return failed_result(NAME, &error),
        };
        let served_kinds: BTreeSet<&str> =
            list.resources.iter().map(|resource| resource.kind.as_str()).collect();
        let known_kinds: Vec<&str> = self.scheme.kinds().iter().map(|kind| kind.kind()).collect();
        let missing_kinds: Vec<&str> =
            known_kinds.iter().copied().filter(|kind| !served_kinds.contains(kind)).collect();
        if missing_kinds.is_empty() {
            check_result(NAME, CheckOutcome::Good, known_kinds.join(", "))
        } else {
            let message =
                format!("{} not served: the API server is older?", missing_kinds.join(", "));
            check_result(NAME, CheckOutcome::Odd, message)
        }
    }

    /// Checks what the user may do in the namespace.
    async fn check_user_rights(&self) -> Vec<CheckResult> {
        let plurals: Vec<&str> = self.scheme.cluster_kinds().map(ServedKind::plural).collect();
        let mut results = Vec::new();
        for (name, verbs, pilots) in [
            ("you may look", &["get", "list", "watch"][..], &["get", "list", "watch"][..]),
            ("you may change", &["create", "patch", "delete"], &["patch"]),
        ] {
            let requests =
                plurals.iter().map(|plural| (*plural, verbs)).chain([("pilots", pilots)]);
            let (mut denied_rights, mut failure) = (Vec::new(), None);
            for (plural, verbs) in requests {
                let mut denied_verbs = Vec::new();
                for verb in verbs {
                    match self.is_allowed(plural, verb).await {
                        Ok(true) => {}
                        Ok(false) => denied_verbs.push(*verb),
                        Err(error) => failure = Some(failed_result(name, &error)),
                    }
                }
                if !denied_verbs.is_empty() {
                    denied_rights.push(format!("{} {plural}", denied_verbs.join("/")));
                }
            }
            results.push(match failure {
                Some(failure) => failure,
                None if denied_rights.is_empty() => {
                    let message = format!("in namespace {}", self.namespace);
                    check_result(name, CheckOutcome::Good, message)
                }
                None => {
                    let message = format!(
                        "not in namespace {}: {}; the roles view and edit allow it",
                        self.namespace,
                        denied_rights.join(", ")
                    );
                    check_result(name, CheckOutcome::Odd, message)
                }
            });
        }
        results
    }

    async fn is_allowed(&self, plural: &str, verb: &str) -> Result<bool, kube::Error> {
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
    async fn check_controller_rights(&self, install: &str) -> CheckResult {
        const NAME: &str = "rights of the controller";
        let plurals: Vec<&str> = self.scheme.cluster_kinds().map(ServedKind::plural).collect();
        let user = format!("system:serviceaccount:{install}:{}", names::CONTROLLER);
        let mut denied_rights = Vec::new();
        let cluster_rules = rbac::controller_rules(&plurals);
        let rule_scopes = cluster_rules.iter().map(|rule| (rule, &*self.namespace));
        let install_rules = rbac::controller_install_rules();
        for (rule, namespace) in rule_scopes.chain(install_rules.iter().map(|rule| (rule, install)))
        {
            for attributes in rule_attributes(rule, namespace) {
                let action = format!(
                    "{} {} in namespace {namespace}",
                    attributes.verb.as_deref().unwrap_or_default(),
                    attributes.resource.as_deref().unwrap_or_default()
                );
                let review = SubjectAccessReview {
                    spec: SubjectAccessReviewSpec {
                        user: Some(user.clone()),
                        resource_attributes: Some(attributes),
                        ..SubjectAccessReviewSpec::default()
                    },
                    ..SubjectAccessReview::default()
                };
                let api: Api<SubjectAccessReview> = Api::all(self.client.clone());
                match api.create(&PostParams::default(), &review).await {
                    Ok(answer) if answer.status.as_ref().is_some_and(|status| status.allowed) => {}
                    Ok(_) => denied_rights.push(action),
                    Err(error) => return failed_result(NAME, &error),
                }
            }
        }
        if denied_rights.is_empty() {
            let message = format!("as the manifest gives them, in namespace {}", self.namespace);
            return check_result(NAME, CheckOutcome::Good, message);
        }
        let message =
            format!("{user} may not {}: apply the manifest again", denied_rights.join(", "));
        check_result(NAME, CheckOutcome::Bad, message)
    }

    /// Checks that no webhook is configured for our kinds in vain: kube-apiserver calls no webhook
    /// for a group that another server serves.
    async fn check_webhooks(&self) -> CheckResult {
        const NAME: &str = "webhooks";
        let mut webhook_names = Vec::new();
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
                Err(error) => return failed_result(NAME, &error),
            };
            let is_for_our_group = |object: &&DynamicObject| {
                let hooks = object.data.get("webhooks").and_then(Value::as_array);
                let rules = hooks.into_iter().flatten().filter_map(|hook| hook.get("rules"));
                let rules = rules.filter_map(Value::as_array).flatten();
                let groups =
                    rules.filter_map(|rule| rule.get("apiGroups")).filter_map(Value::as_array);
                groups.flatten().any(|group| group == GROUP)
            };
            webhook_names.extend(
                list.items
                    .iter()
                    .filter(is_for_our_group)
                    .filter_map(|object| object.metadata.name.clone()),
            );
        }
        if webhook_names.is_empty() {
            return check_result(NAME, CheckOutcome::Good, "no configuration names our group");
        }
        let message = format!("Navigator's API server asks those of {}", webhook_names.join(", "));
        check_result(NAME, CheckOutcome::Good, message)
    }

    async fn check_storage_class(&self) -> CheckResult {
        const NAME: &str = "storage class";
        const DEFAULT: &str = "storageclass.kubernetes.io/is-default-class";
        let api: Api<StorageClass> = Api::all(self.client.clone());
        let list = match api.list(&ListParams::default()).await {
            Ok(list) => list,
            Err(error) => return failed_result(NAME, &error),
        };
        let default = list.items.iter().find(|class| {
            class.metadata.annotations.as_ref().is_some_and(|annotations| {
                annotations.get(DEFAULT).is_some_and(|value| value == "true")
            })
        });
        match default.and_then(|class| class.metadata.name.clone()) {
            Some(name) => check_result(NAME, CheckOutcome::Good, format!("{name} is the default")),
            None => check_result(
                NAME,
                CheckOutcome::Odd,
                "none is the default: name one in persistence.storageClass of each node pool",
            ),
        }
    }
}

/// Returns questions for each verb of a rule on its first resource; the rule grants its other
/// resources alike.
fn rule_attributes(rule: &PolicyRule, namespace: &str) -> Vec<ResourceAttributes> {
    let group = rule.api_groups.iter().flatten().next().cloned();
    let resource = rule.resources.iter().flatten().next().cloned().unwrap_or_default();
    let (resource, subresource) = match resource.split_once('/') {
        Some((resource, sub)) => (resource.to_owned(), Some(sub.to_owned())),
        None => (resource, None),
    };
    let name = rule.resource_names.iter().flatten().next().cloned();
    let build_attributes = |verb: &String| ResourceAttributes {
        group: group.clone(),
        resource: Some(resource.clone()),
        subresource: subresource.clone(),
        name: name.clone(),
        verb: Some(verb.clone()),
        namespace: Some(namespace.to_owned()),
        ..ResourceAttributes::default()
    };
    rule.verbs.iter().map(build_attributes).collect()
}

/// Returns a remark if an image is of another version than this plugin.
fn version_skew(image: &str) -> Option<String> {
    let tag = image.split('@').next()?.rsplit_once(':')?.1;
    let version = tag.strip_prefix('v').filter(|_| !tag.contains('/'))?;
    let is_different =
        version != build_info::VERSION && version.starts_with(|c: char| c.is_ascii_digit());
    is_different.then(|| format!("this plugin is v{}", build_info::VERSION))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_image_of_another_version_is_odd() {
        let own = format!("quay.io/x/navigator:v{}", build_info::VERSION);
        assert_eq!(version_skew(&own), None);
        assert_eq!(version_skew("quay.io/x/navigator:latest"), None);
        assert_eq!(version_skew("host:5000/navigator"), None);
        assert_eq!(version_skew("navigator@sha256:00"), None);
        assert!(version_skew("navigator:v0.0.1@sha256:00").is_some());
    }

    #[test]
    fn each_verb_of_a_rule_is_asked_for() {
        let rules = rbac::controller_rules(&["exampleclusters"]);
        let rules: Vec<_> = rules.into_iter().chain(rbac::controller_install_rules()).collect();
        let asked: Vec<_> = rules.iter().flat_map(|rule| rule_attributes(rule, "db")).collect();
        let status = asked.iter().find(|one| one.subresource.as_deref() == Some("status")).unwrap();
        assert_eq!(status.resource.as_deref(), Some("exampleclusters"));
        assert!(asked.iter().any(|one| one.name.as_deref() == Some(names::STORE_CONFIG_MAP)));
        assert!(asked.iter().all(|one| one.verb.is_some()));
    }
}
