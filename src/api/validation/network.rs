//! Rules about who may reach a cluster (V68), in the words of core NetworkPolicies.

use std::net::IpAddr;

use k8s_openapi::{
    api::networking::v1::{IPBlock, NetworkPolicyPeer},
    apimachinery::pkg::apis::meta::v1::LabelSelector,
};

use super::{format, metadata, validator::Validator};
use crate::{api::v1beta1::NetworkAccess, machinery::field_error::FieldPath};

const OPERATORS: &[&str] = &["In", "NotIn", "Exists", "DoesNotExist"];

pub(super) fn validate(validator: &mut Validator, network: &NetworkAccess, path: &FieldPath) {
    let NetworkAccess { policy: _, clients, monitoring, internode } = network;
    for (name, peers) in
        [("clients", clients), ("monitoring", monitoring), ("internode", internode)]
    {
        for (index, peer) in peers.iter().enumerate() {
            self::peer(validator, peer, &path.child(name).index(index));
        }
    }
}

fn peer(validator: &mut Validator, peer: &NetworkPolicyPeer, path: &FieldPath) {
    let NetworkPolicyPeer { ip_block, namespace_selector, pod_selector } = peer;
    let selectors = [("namespaceSelector", namespace_selector), ("podSelector", pod_selector)];
    for (name, one) in selectors {
        if let Some(one) = one {
            selector(validator, one, &path.child(name));
        }
    }
    let selects = selectors.iter().any(|(_, one)| one.is_some());
    match ip_block {
        None if !selects => validator.required(path, "must specify a peer"),
        None => {}
        Some(_) if selects => {
            validator.forbidden(path, "may not specify both ipBlock and another peer");
        }
        Some(block) => self::block(validator, block, &path.child("ipBlock")),
    }
}

fn block(validator: &mut Validator, block: &IPBlock, path: &FieldPath) {
    let IPBlock { cidr, except } = block;
    let wrong = format::cidr(cidr);
    validator.invalid_each(&path.child("cidr"), cidr, &wrong);
    for (index, part) in except.iter().flatten().enumerate() {
        let path = path.child("except").index(index);
        let unread = format::cidr(part);
        validator.invalid_each(&path, part, &unread);
        if wrong.is_empty() && unread.is_empty() && !lies_within(part, cidr) {
            validator.invalid(&path, part.as_str(), "must be a strict subset of `cidr`");
        }
    }
}

/// Are the addresses of `part` some, and not all, of those of `whole`? Both are valid.
fn lies_within(part: &str, whole: &str) -> bool {
    let read = |text: &str| {
        let (address, bits) = text.trim().split_once('/')?;
        let bits: u32 = bits.parse().ok()?;
        // As the first bits of 128.
        Some(match address.parse().ok()? {
            IpAddr::V4(address) => (true, u128::from(address.to_bits()) << 96, bits),
            IpAddr::V6(address) => (false, address.to_bits(), bits),
        })
    };
    let (Some((v4, part, length)), Some((whole_v4, whole, least))) = (read(part), read(whole))
    else {
        return false;
    };
    let prefix = |bits: u128| bits.checked_shr(128 - least).unwrap_or(0);
    v4 == whole_v4 && length > least && prefix(part) == prefix(whole)
}

fn selector(validator: &mut Validator, selector: &LabelSelector, path: &FieldPath) {
    let LabelSelector { match_labels, match_expressions } = selector;
    metadata::labels(validator, match_labels.iter().flatten(), &path.child("matchLabels"));
    for (index, one) in match_expressions.iter().flatten().enumerate() {
        let path = path.child("matchExpressions").index(index);
        validator.invalid_each(&path.child("key"), &one.key, &format::qualified_name(&one.key));
        let values = one.values.as_deref().unwrap_or_default();
        match one.operator.as_str() {
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
            validator.invalid_each(&path, value, &format::label_value(value));
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
