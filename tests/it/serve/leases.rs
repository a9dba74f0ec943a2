//! Whose LeaderLease a pilot writes.

use navigator::apiserver::{
    admission::{AdmissionAttributes, AdmissionOperation, AdmissionPlugin},
    authn::User,
    role::pilot_lease::PilotLeaseRestriction,
};

#[tokio::test]
async fn a_pilot_writes_the_lease_of_its_own_cluster_and_of_no_other() {
    let plugin = PilotLeaseRestriction::new(crate::scheme(), "navigator");
    for (name, lease, admitted) in [
        ("system:serviceaccount:db:cass-demo", "cassandra-demo-leaderelection", true),
        ("system:serviceaccount:db:es-demo", "elastic-demo-leaderelection", true),
        ("system:serviceaccount:db:cass-demo", "cassandra-other-leaderelection", false),
        ("system:serviceaccount:db:cass-demo", "elastic-demo-leaderelection", false),
        ("system:serviceaccount:db:cass-demo", "anything", false),
        // What RBAC lets others do is not for this rule.
        ("system:serviceaccount:db:host-a", "cassandra-demo-leaderelection", true),
        ("system:serviceaccount:backup:restore", "cassandra-demo-leaderelection", true),
        ("system:serviceaccount:navigator:navigator-controller", "anything", true),
        ("jane", "anything", true),
    ] {
        let user = User { name: name.into(), ..User::default() };
        for operation in
            [AdmissionOperation::Create, AdmissionOperation::Update, AdmissionOperation::Delete]
        {
            let attributes = AdmissionAttributes {
                operation,
                user: &user,
                group: "navigator.jetstack.io",
                resource: "leaderleases",
                subresource: "",
                namespace: "db",
                name: lease,
                object: None,
                old: None,
                dry_run: false,
            };
            let expected = admitted || operation == AdmissionOperation::Delete;
            let outcome = plugin.admit(attributes).await;
            assert_eq!(outcome.is_ok(), expected, "{name} {lease} {operation:?}");
        }
    }
}
