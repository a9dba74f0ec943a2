//! Rules about who may reach a cluster (V68), in the words of core NetworkPolicies.

use std::net::IpAddr;

use k8s_openapi::{
    api::networking::v1::{IPBlock, NetworkPolicyPeer},
    apimachinery::pkg::apis::meta::v1::LabelSelector,
};

use super::{format, metadata, validator::Validator};
use crate::{api::v1beta1::NetworkAccess, machinery::field_error::FieldPath};

const OPERATORS: &[&str] = &["In", "NotIn", "Exists", "DoesNotExist"];

pub(super) fn validate_network(
    validator: &mut Validator,
    network: &NetworkAccess,
    path: &FieldPath,
) {
    let NetworkAccess { policy: _, clients, monitoring, internode } = network;
    for (name, peers) in
        [("clients", clients), ("monitoring", monitoring), ("internode", internode)]
    {
        for (index, peer) in peers.iter().enumerate() {
            self::validate_peer(validator, peer, &path.child(name).index(index));
        }
    }
}

fn validate_peer(validator: &mut Validator, peer: &NetworkPolicyPeer, path: &FieldPath) {
    let NetworkPolicyPeer { ip_block, namespace_selector, pod_selector } = peer;
    let selectors = [("namespaceSelector", namespace_selector), ("podSelector", pod_selector)];
    for (name, selector) in selectors {
        if let Some(selector) = selector {
            validate_selector(validator, selector, &path.child(name));
        }
    }
    let has_selector = selectors.iter().any(|(_, selector)| selector.is_some());
    match ip_block {
        None if !has_selector => validator.required(path, "must specify a peer"),
        None => {}
        Some(_) if has_selector => {
            validator.forbidden(path, "may not specify both ipBlock and another peer");
        }
        Some(block) => self::validate_ip_block(validator, block, &path.child("ipBlock")),
    }
}

fn validate_ip_block(validator: &mut Validator, block: &IPBlock, path: &FieldPath) {
    let IPBlock { cidr, except } = block;
    let problems = format::check_cidr(cidr);
    validator.invalid_each(&path.child("cidr"), cidr, &problems);
    for (index, part) in except.iter().flatten().enumerate() {
        let path = path.child("except").index(index);
        let part_problems = format::check_cidr(part);
        validator.invalid_each(&path, part, &part_problems);
        if problems.is_empty() && part_problems.is_empty() && !lies_within(part, cidr) {
            validator.invalid(&path, part.as_str(), "must be a strict subset of `cidr`");
        }
    }
}

/// Are the addresses of `part` some, and not all, of those of `whole`? Both are valid.
fn lies_within(part: &str, whole: &str) -> bool {
    let parse_range = |text: &str| {
        let (address, bits) = text.trim().split_once('/')?;
        let bits: u32 = bits.parse().ok()?;
        // As the first bits of 128.
        Some(match address.parse().ok()? {
            IpAddr::V4(address) => (true, u128::from(address.to_bits()) << 96, bits),
            IpAddr::V6(address) => (false, address.to_bits(), bits),
        })
    };
    let (Some((is_v4, part, length)), Some((is_whole_v4, whole, whole_length))) =
        (parse_range(part), parse_range(whole))
    else {
        return false;
    };
    let prefix = |bits: u128| bits.checked_shr(128 - whole_length).unwrap_or(0);
    is_v4 == is_whole_v4 && length > whole_length && prefix(part) == prefix(whole)
}

fn validate_selector(validator: &mut Validator, selector: &LabelSelector, path: &FieldPath) {
    let LabelSelector { match_labels, match_expressions } = selector;
    metadata::validate_labels(validator, match_labels.iter().flatten(), &path.child("matchLabels"));
    for (index, expression) in match_expressions.iter().flatten().enumerate() {
        let path = path.child("matchExpressions").index(index);
        validator.invalid_each(
            &path.child("key"),
            &expression.key,
            &format::check_qualified_name(&expression.key),
        );
        let values = expression.values.as_deref().unwrap_or_default();
        match expression.operator.as_str() {
            "In" | "NotIn" if values.is_empty() => validator.required(
                &path.child("values"),
                "must be specified when `operator` is 'In' or 'NotIn'",
            ),
            "Exists" | "DoesNotExist" if !values.is_empty() => validator.forbidden(
                &path.child("values"),
                "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
            ),
            operator if !OPERATORS.contains(&operator) => {
                validator.unsupported(&path.child("operator"), operator, OPERATORS);
            }
            _ => {}
        }
        for (index, value) in values.iter().enumerate() {
            let path = path.child("values").index(index);
            validator.invalid_each(&path, value, &format::check_label_value(value));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::lies_within;

    #[test]
    fn a_part_of_a_network_is_smaller_and_begins_alike() {
        for (part, whole, lies) in [
            ("10.1.0.0/16", "10.0.0.0/8", true),
            ("10.0.0.0/8", "10.0.0.0/8", false),
            ("11.1.0.0/16", "10.0.0.0/8", false),
            ("10.0.0.0/8", "10.1.0.0/16", false),
            ("1.2.3.4/32", "0.0.0.0/0", true),
            ("2001:db8:1::/48", "2001:db8::/32", true),
            ("2001:db8:1::/48", "10.0.0.0/8", false),
            ("10.1.0.0/16", "::/0", false),
        ] {
            assert_eq!(lies_within(part, whole), lies, "{part} {whole}");
        }
    }
}
