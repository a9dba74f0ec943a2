//! Flags that turn admission plugins on and off: `--enable-admission-plugins` and its opposite.

use crate::apiserver::{admission::webhook::EnabledWebhookTypes, run::EnabledAdmissionPlugins};

const NAMESPACES: &str = "NamespaceLifecycle";
const MUTATING: &str = "MutatingAdmissionWebhook";
const VALIDATING: &str = "ValidatingAdmissionWebhook";
const ALL: [&str; 3] = [NAMESPACES, MUTATING, VALIDATING];

#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Admission")]
#[group(skip)]
pub(super) struct Args {
    /// Admission plugins to ask, by name, separated by commas. All are asked anyway, so this only
    /// checks the names: NamespaceLifecycle, MutatingAdmissionWebhook and
    /// ValidatingAdmissionWebhook.
    #[arg(
        long,
        value_name = "NAMES",
        env = "NAVIGATOR_ENABLE_ADMISSION_PLUGINS",
        value_delimiter = ','
    )]
    enable_admission_plugins: Vec<String>,
    /// Admission plugins not to ask, by name, separated by commas.
    #[arg(
        long,
        value_name = "NAMES",
        env = "NAVIGATOR_DISABLE_ADMISSION_PLUGINS",
        value_delimiter = ','
    )]
    disable_admission_plugins: Vec<String>,
}

impl Args {
    pub(super) fn enabled_plugins(self) -> Result<EnabledAdmissionPlugins, String> {
        let Self {
            enable_admission_plugins: enabled_names,
            disable_admission_plugins: disabled_names,
        } = self;
        for (flag, names) in [
            ("--enable-admission-plugins", &enabled_names),
            ("--disable-admission-plugins", &disabled_names),
        ] {
            if let Some(name) = names.iter().find(|name| !ALL.contains(&name.as_str())) {
                let known_plugins = ALL.join(", ");
                return Err(format!(
                    "{flag}: there is no plugin {name:?}; known are {known_plugins}"
                ));
            }
        }
        if let Some(name) = enabled_names.iter().find(|name| disabled_names.contains(name)) {
            return Err(format!("admission plugin {name:?} is both enabled and disabled"));
        }
        let is_on = |name: &str| !disabled_names.iter().any(|disabled_name| disabled_name == name);
        Ok(EnabledAdmissionPlugins {
            namespaces: is_on(NAMESPACES),
            webhooks: EnabledWebhookTypes {
                mutating: is_on(MUTATING),
                validating: is_on(VALIDATING),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plugins(enabled: &[&str], disabled: &[&str]) -> Result<EnabledAdmissionPlugins, String> {
        let list = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        let args = Args {
            enable_admission_plugins: list(enabled),
            disable_admission_plugins: list(disabled),
        };
        args.enabled_plugins()
    }

    #[test]
    fn all_plugins_are_on_but_those_that_are_turned_off() {
        let shown = |plugins: EnabledAdmissionPlugins| {
            let EnabledAdmissionPlugins {
                namespaces,
                webhooks: EnabledWebhookTypes { mutating, validating },
            } = plugins;
            [namespaces, mutating, validating]
        };
        assert_eq!(plugins(&[], &[]).map(shown), Ok([true; 3]));
        assert_eq!(plugins(&[VALIDATING], &[MUTATING]).map(shown), Ok([true, false, true]));
        assert_eq!(plugins(&[], &ALL).map(shown), Ok([false; 3]));
    }

    #[test]
    fn unknown_and_contradicting_names_are_refused() {
        let unknown = |flag: &str, name: &str| {
            format!(
                "--{flag}-admission-plugins: there is no plugin {name:?}; known are \
                 NamespaceLifecycle, MutatingAdmissionWebhook, ValidatingAdmissionWebhook"
            )
        };
        let both = format!("admission plugin {MUTATING:?} is both enabled and disabled");
        for (enabled, disabled, refusal) in [
            (vec!["PodSecurity"], vec![], unknown("enable", "PodSecurity")),
            (vec![VALIDATING, "a"], vec![], unknown("enable", "a")),
            (vec![], vec!["ValidatingAdmissionPolicy"], {
                unknown("disable", "ValidatingAdmissionPolicy")
            }),
            (vec![VALIDATING, MUTATING], vec![MUTATING], both),
            (vec![""], vec![], unknown("enable", "")),
        ] {
            let refused = plugins(&enabled, &disabled).map(drop);
            assert_eq!(refused, Err(refusal), "{enabled:?} {disabled:?}");
        }
    }
}
