//! Requirements on labels, in the form and with the operators of 2019.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One requirement on the labels of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {
        "rule": "!(self.operator in ['=', '==', '!=', 'gt', 'lt']) || (has(self.value) && self.value.size() == 1)",
        "message": "operators =, ==, !=, gt and lt take one value",
    },
    {
        "rule": "!(self.operator in ['in', 'notin']) || (has(self.value) && self.value.size() > 0)",
        "message": "operators in and notin take one value or more",
    },
    {
        "rule": "!(self.operator in ['exists', '!']) || !has(self.value) || self.value.size() == 0",
        "message": "operators exists and ! take no value",
    },
    {
        "rule": "!(self.operator in ['gt', 'lt']) || !has(self.value) || self.value.all(v, v.matches('^-?[0-9]{1,18}$'))",
        "message": "operators gt and lt compare with a whole number",
    },
]))]
pub struct LabelRequirement {
    /// Key of the label.
    #[schemars(length(min = 1, max = 317))]
    pub label: String,
    /// `=`, `==`, `!=`, `in`, `notin`, `exists`, `!`, `gt` or `lt`.
    pub operator: LabelOperator,
    /// Values to compare with; none for `exists` and `!`. Programs of 2019 write `null` for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64), inner(length(max = 63)))]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub value: Option<Vec<String>>,
}

/// How a label is compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum LabelOperator {
    #[default]
    #[serde(rename = "=")]
    Equals,
    #[serde(rename = "==")]
    DoubleEquals,
    #[serde(rename = "!=")]
    NotEquals,
    #[serde(rename = "in")]
    In,
    #[serde(rename = "notin")]
    NotIn,
    #[serde(rename = "exists")]
    Exists,
    #[serde(rename = "!")]
    DoesNotExist,
    #[serde(rename = "gt")]
    GreaterThan,
    #[serde(rename = "lt")]
    LessThan,
}

impl LabelRequirement {
    /// Do these labels meet the requirement? As Kubernetes has it, `!=` and `notin` are met by an
    /// object without the label.
    pub fn matches_labels(&self, labels: &BTreeMap<String, String>) -> bool {
        let label_value = labels.get(&self.label);
        let values = self.value.as_deref().unwrap_or_default();
        let is_listed = || label_value.is_some_and(|value| values.contains(value));
        let compare_numbers = || {
            let label_number: i64 = label_value?.parse().ok()?;
            let value: i64 = values.first()?.parse().ok()?;
            Some(label_number.cmp(&value))
        };
        match self.operator {
            LabelOperator::Equals | LabelOperator::DoubleEquals | LabelOperator::In => is_listed(),
            LabelOperator::NotEquals | LabelOperator::NotIn => !is_listed(),
            LabelOperator::Exists => label_value.is_some(),
            LabelOperator::DoesNotExist => label_value.is_none(),
            LabelOperator::GreaterThan => compare_numbers().is_some_and(std::cmp::Ordering::is_gt),
            LabelOperator::LessThan => compare_numbers().is_some_and(std::cmp::Ordering::is_lt),
        }
    }
}

/// Do these labels meet all requirements? No requirement is met by all.
pub fn matches_all(requirements: &[LabelRequirement], labels: &BTreeMap<String, String>) -> bool {
    requirements.iter().all(|requirement| requirement.matches_labels(labels))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_compare_as_those_of_2019() {
        let labels: BTreeMap<String, String> =
            [("pool".to_owned(), "a".to_owned()), ("cores".to_owned(), "8".to_owned())].into();
        for (label, operator, values, holds) in [
            ("pool", "=", vec!["a"], true),
            ("pool", "==", vec!["b"], false),
            ("pool", "!=", vec!["b"], true),
            ("zone", "!=", vec!["b"], true),
            ("pool", "in", vec!["b", "a"], true),
            ("zone", "in", vec!["a"], false),
            ("pool", "notin", vec!["a"], false),
            ("zone", "notin", vec!["a"], true),
            ("pool", "exists", vec![], true),
            ("zone", "exists", vec![], false),
            ("zone", "!", vec![], true),
            ("pool", "!", vec![], false),
            ("cores", "gt", vec!["7"], true),
            ("cores", "gt", vec!["8"], false),
            ("cores", "lt", vec!["9"], true),
            ("pool", "lt", vec!["9"], false),
            ("zone", "gt", vec!["0"], false),
        ] {
            let requirement: LabelRequirement = serde_json::from_value(serde_json::json!({
                "label": label, "operator": operator, "value": values,
            }))
            .unwrap();
            assert_eq!(requirement.matches_labels(&labels), holds, "{label} {operator} {values:?}");
        }
        let none = serde_json::json!({"label": "pool", "operator": "exists", "value": null});
        assert!(serde_json::from_value::<LabelRequirement>(none).unwrap().matches_labels(&labels));
    }
}
