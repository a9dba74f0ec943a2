//! Until when a pod may have a token of a ServiceAccount that was deleted.
//!
//! A token is bound to the uid of its ServiceAccount. After the account is deleted and made again,
//! every request with the old token is answered 401 until the kubelet puts a new one into the pod,
//! which it does by the clock alone. Owns how a pod with such a token is recognised and until when
//! it keeps the token; decides nothing.

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
    jiff::{SignedDuration, Timestamp},
};

/// Longest time that an old token stays in a pod after the new account was made. The kubelet renews
/// a token of 3607 s at 80 % of that, and writes it into the pod when it next syncs the volume, a
/// minute or two later. No token is issued while the account does not exist.
const RENEWAL: SignedDuration = SignedDuration::from_mins(50);

/// Returns until when a pod that is older than its ServiceAccount may have a token of the earlier
/// account. `None` for a younger pod, and once that time is over. One server made both, and its
/// clock orders them; our own clock decides only when the time is over.
pub(super) fn renewed_by(
    pod: &ObjectMeta,
    account: Option<&ObjectMeta>,
    now: Timestamp,
) -> Option<Timestamp> {
    let created_at = |meta: &ObjectMeta| meta.creation_timestamp.as_ref().map(|time| time.0);
    let account_created_at = created_at(account?)?;
    let deadline = account_created_at.checked_add(RENEWAL).ok()?;
    (created_at(pod)? < account_created_at && now < deadline).then_some(deadline)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

    #[test]
    fn a_token_is_dead_from_the_making_of_a_later_account_until_kubelet_has_renewed_it() {
        let at = |minutes: i64| Timestamp::from_second(1_000_000 + minutes * 60).unwrap();
        let made = |minutes| ObjectMeta {
            creation_timestamp: Some(Time(at(minutes))),
            ..ObjectMeta::default()
        };
        let by = |pod, account, now| renewed_by(&made(pod), Some(&made(account)), at(now));
        assert_eq!(by(0, 10, 11), Some(at(60)));
        assert_eq!(by(0, 10, 59), Some(at(60)));
        assert_eq!(by(0, 10, 60), None, "it is renewed by now");
        assert_eq!(by(10, 10, 11), None, "an account is made before the pods that use it");
        assert_eq!(by(11, 10, 12), None);
        assert_eq!(renewed_by(&made(0), None, at(1)), None);
        assert_eq!(renewed_by(&ObjectMeta::default(), Some(&made(10)), at(11)), None);
    }
}
