use serde_json::{Value, json};

use super::*;

const ORGANIZATION: &str = "11111111-0000-4000-8000-000000000001";
const CLUSTER: &str = "22222222-0000-4000-8000-000000000002";
const KEY: &str = "token";

fn scope() -> HubScope {
    HubScope { organization: ORGANIZATION.to_owned(), cluster: CLUSTER.to_owned() }
}

fn kind(plural: &str) -> &'static HubKind {
    KINDS.iter().find(|kind| kind.plural == plural).unwrap()
}

fn id(number: usize) -> String {
    format!("33333333-0000-4000-8000-{number:012}")
}

fn users(numbers: impl IntoIterator<Item = usize>) -> Vec<HubItem> {
    let user = |number: usize| json!({"id": id(number), "name": format!("n{number}")});
    let all: Vec<Value> = numbers.into_iter().map(user).collect();
    parse_items(kind("users"), &scope(), None, json!(all).to_string().as_bytes()).unwrap()
}

/// The object of an item, as it stands once it was applied.
fn live(item: &HubItem, managed: bool) -> LiveObject {
    let mut meta = json!({
        "name": item.name, "uid": "u", "resourceVersion": "7",
        "annotations": {"containership.io/hub-digest": item.digest(KEY)},
    });
    if managed {
        meta["labels"] = json!({"containership.io/managed": "true"});
    }
    LiveObject::new(&serde_json::from_value(meta).unwrap(), &Value::Object(item.spec.clone()))
}

fn lives(numbers: impl IntoIterator<Item = usize>) -> Vec<LiveObject> {
    users(numbers).iter().map(|item| live(item, true)).collect()
}

/// Names of a plan: applied and deleted; and of the held deletion its count, all, and answers.
type PlanSummary = (Vec<String>, Vec<String>, Option<(usize, usize, u8)>);

fn told(plan: &KindPlan<'_>) -> PlanSummary {
    (
        plan.apply.iter().map(|(item, _)| item.name.clone()).collect(),
        plan.delete.iter().map(|object| object.name.clone()).collect(),
        plan.held.as_ref().map(|held| (held.count, held.all, held.answers)),
    )
}

/// As csctl of 2019 has it: fields of the API that no spec has, and null.
#[test]
fn an_answer_of_2019_becomes_specs() {
    let body = json!([{
        "id": id(1), "name": "Anne", "email": "anne@example.org", "avatar_url": null,
        "added_at": "1547475212", "ssh_keys": [{
            "id": id(2), "created_at": "x", "updated_at": "x", "user_id": id(1), "name": "laptop",
            "fingerprint": "f", "key": "ssh-ed25519 AAAA",
        }],
    }]);
    let items = parse_items(kind("users"), &scope(), None, body.to_string().as_bytes()).unwrap();
    let spec = json!({
        "id": id(1), "name": "Anne", "added_at": "1547475212",
        "ssh_keys": [{"id": id(2), "name": "laptop", "fingerprint": "f", "key": "ssh-ed25519 AAAA"}],
    });
    assert_eq!((items[0].name.clone(), json!(items[0].spec)), (id(1), spec));

    let body = json!([{
        "id": id(1), "organization_id": ORGANIZATION, "created_at": "x", "updated_at": "x",
        "description": "d", "provider": "quay", "serveraddress": "quay.io",
        "credentials": {"username": "u", "password": "p"},
    }]);
    let items = parse_items(&REGISTRIES, &scope(), None, body.to_string().as_bytes()).unwrap();
    assert_eq!(items[0].spec["credentials"]["password"], "p");
    assert!(!format!("{items:?}").contains("password"));

    let pools = json!([{"id": id(8), "name": "workers", "count": 3}]).to_string();
    assert_eq!(read_pools(&scope(), pools.as_bytes()).unwrap(), [id(8)]);
    let labels = json!([{"id": id(1), "key": "nodepool.containership.io/a", "value": "b"}]);
    let labels = labels.to_string();
    let items = parse_items(&NODE_POOL_LABELS, &scope(), Some(&id(8)), labels.as_bytes()).unwrap();
    assert_eq!(items[0].spec["node_pool_id"], id(8));
    assert_eq!(
        scope().pool_path("p"),
        format!("/v3/organizations/{ORGANIZATION}/clusters/{CLUSTER}/node-pools/p/labels")
    );
    assert_eq!(
        scope().kind_path(kind("authorizationrolebindings")),
        format!("/v3/organizations/{ORGANIZATION}/role-bindings?cluster_id={CLUSTER}")
    );
}

#[test]
fn an_answer_of_which_any_part_is_wrong_is_not_believed() {
    let good = json!({"id": id(1), "organization_id": ORGANIZATION, "cluster_id": CLUSTER});
    let with = |change: Value| {
        let mut item = good.clone();
        json_patch::merge(&mut item, &change);
        json!([good, item])
    };
    let other = id(9);
    for (body, says) in [
        (with(json!({"id": id(2), "organization_id": other})), "of another organization_id"),
        (with(json!({"id": id(2), "organization_id": 7})), "of another organization_id"),
        (with(json!({"id": id(2), "cluster_id": other})), "of another cluster_id"),
        (with(json!({"id": id(2), "node_pool_id": other})), "of another node_pool_id"),
        (with(json!({})), "two items have the id"),
        (with(json!({"id": null})), "the id of item 1 is no UUID"),
        (with(json!({"id": "anne"})), "the id of item 1 is no UUID"),
        (with(json!({"id": "../../secrets"})), "no UUID"),
        (with(json!({"id": id(2).replace('3', "A")})), "no UUID"),
        (with(json!({"id": id(2).replace('-', "")})), "no UUID"),
        (with(json!({"id": 2})), "no UUID"),
        (json!([good, "x"]), "no list of objects"),
        (json!({"items": [good]}), "no list of objects"),
        (json!(null), "no list of objects"),
    ] {
        let body = body.to_string();
        let read = parse_items(kind("plugins"), &scope(), Some(&id(8)), body.as_bytes());
        let said = read.map_err(|fault| fault.to_string()).unwrap_err();
        assert!(said.contains(says), "{body}: {said}");
    }
    // Cut anywhere, it is no answer.
    let whole = json!([good]).to_string();
    for end in 0..whole.len() {
        assert!(
            parse_items(kind("plugins"), &scope(), None, &whole.as_bytes()[..end]).is_err(),
            "{end}"
        );
    }
    // What another cluster manager left empty is not said.
    let empty = json!([{"id": id(1), "organization_id": "", "cluster_id": null}]).to_string();
    assert_eq!(parse_items(kind("plugins"), &scope(), None, empty.as_bytes()).unwrap().len(), 1);
    let pools: Vec<Value> = (0..1001).map(|number| json!({"id": id(number)})).collect();
    let many = read_pools(&scope(), json!(pools).to_string().as_bytes());
    assert!(matches!(many, Err(AnswerFault::ManyPools)));
}

#[test]
fn what_stands_is_not_applied_again_and_what_was_edited_is() {
    let items = users([1]);
    let fresh = live(&items[0], true);
    let applied = |object: LiveObject| {
        let objects = [object];
        let plan =
            plan_kind(kind("users"), &items, &objects, KEY, &mut DeletionDoubt::default(), "");
        assert_eq!(plan.delete, [&objects[0]; 0]);
        plan.apply.len()
    };
    assert_eq!(applied(fresh.clone()), 0);
    let edited = |change: Value| {
        let mut object = fresh.clone();
        json_patch::merge(&mut object.spec, &change);
        object
    };
    assert_eq!(applied(edited(json!({"name": "other"}))), 1);
    assert_eq!(applied(edited(json!({"name": null}))), 1);
    assert_eq!(applied(edited(json!({"of-others": {}}))), 0, "fields of others are theirs");
    assert_eq!(applied(LiveObject { digest: None, ..fresh.clone() }), 1);
    // The hub wanted something once that it does not want any more.
    let before = HubItem { spec: Map::new(), ..items[0].clone() }.digest(KEY);
    assert_eq!(applied(LiveObject { digest: Some(before), ..fresh.clone() }), 1);
    assert_eq!(applied(LiveObject { deleting: true, ..fresh }), 0);

    // Defaults in items of a list are no edits; credentials are moved away.
    let body = json!([{
        "id": id(1), "credentials": {"password": "p"}, "description": "d",
    }]);
    let items = parse_items(&REGISTRIES, &scope(), None, body.to_string().as_bytes()).unwrap();
    let mut object = live(&items[0], true);
    object.spec = json!({"id": id(1), "description": "d", "credentialsSecretRef": {"name": "s"}});
    let objects = [object];
    let plan = plan_kind(&REGISTRIES, &items, &objects, KEY, &mut DeletionDoubt::default(), "");
    assert_eq!(plan, KindPlan::default());
    assert_ne!(items[0].digest(KEY), items[0].digest("another token"));
}

#[test]
fn objects_without_the_label_are_never_touched() {
    let items = users(0..10);
    let others: Vec<LiveObject> = items.iter().map(|item| live(item, false)).collect();
    let mut doubt = DeletionDoubt::default();
    let found = plan_kind(kind("users"), &items[..5], &others, KEY, &mut doubt, "");
    assert_eq!(told(&found), (vec![], vec![], None));
    assert_eq!(found.foreign.len(), 5);
    for _ in 0..5 {
        let found = plan_kind(kind("users"), &[], &others, KEY, &mut doubt, "");
        assert_eq!(found, KindPlan::default());
    }
}

#[test]
fn a_few_objects_go_at_once_and_most_of_them_after_three_answers() {
    let objects = lives(0..10);
    let answer = |doubt: &mut DeletionDoubt, kept: Vec<usize>| {
        let items = users(kept);
        let (applied, deleted, held) =
            told(&plan_kind(kind("users"), &items, &objects, KEY, doubt, ""));
        assert_eq!(applied, [""; 0]);
        (deleted.len(), held)
    };
    let doubt = &mut DeletionDoubt::default();
    assert_eq!(answer(doubt, (0..7).collect()), (3, None));
    assert_eq!(answer(doubt, (0..5).collect()), (5, None), "half");
    assert_eq!(answer(doubt, (0..4).collect()), (0, Some((6, 10, 1))));
    assert_eq!(answer(doubt, (0..4).collect()), (0, Some((6, 10, 2))));
    assert_eq!(answer(doubt, (0..9).collect()), (1, None), "all is well again");
    assert_eq!(answer(doubt, vec![]), (0, Some((10, 10, 1))), "it begins anew");
    assert_eq!(answer(doubt, vec![0]), (0, Some((9, 10, 2))), "one is back");
    assert_eq!(answer(doubt, vec![1]), (8, None), "what each of the three took away");
    assert_eq!(*doubt, DeletionDoubt::default());
    // Answers that have nothing in common.
    assert_eq!(answer(doubt, (0..4).collect()).1, Some((6, 10, 1)));
    doubt.names = [id(99)].into();
    assert_eq!(answer(doubt, (0..4).collect()).1, Some((6, 10, 1)));

    // The last ones of a kind are not taken away by one empty list.
    let objects = lives(0..2);
    let mut doubt = DeletionDoubt::default();
    for answers in 1..=3 {
        let (_, deleted, held) =
            told(&plan_kind(kind("users"), &[], &objects, KEY, &mut doubt, ""));
        assert_eq!(
            (deleted.len(), held.is_some()),
            if answers < 3 { (0, true) } else { (2, false) }
        );
    }
}

#[test]
fn a_person_confirms_exactly_what_is_held() {
    let objects = lives(0..10);
    let held = |kept: usize, said: &str| {
        let items = users(0..kept);
        let mut doubt = DeletionDoubt::default();
        plan_kind(kind("users"), &items, &objects, KEY, &mut doubt, said).held
    };
    let word = held(2, "").unwrap().word;
    assert!(word.starts_with("users-"), "{word}");
    assert_eq!(held(2, &word), None);
    assert_eq!(held(2, &format!("plugins-00, {word}")), None);
    assert!(held(1, &word).is_some(), "another deletion is another word");
    assert!(held(2, "true").is_some());
}

#[test]
fn manifests_are_lists_of_objects_with_nothing_to_do_beside_them() {
    let scope = scope();
    assert_eq!(
        scope.plugin_path("metrics"),
        format!("/v3/organizations/{ORGANIZATION}/clusters/{CLUSTER}/plugins/metrics")
    );
    let read = |body: Value| read_manifests(body.to_string().as_bytes());
    let (one, two) = (json!({"kind": "A"}), json!({"kind": "B"}));
    let good = json!({
        "id": id(1), "manifests": [[one], [], [two]], "jobs": {"pre_apply": [], "post_apply": null},
        "urls": null,
    });
    assert_eq!(read(good).unwrap(), "{\"kind\":\"A\"}\n---\n{\"kind\":\"B\"}");
    assert_eq!(read(json!({"manifests": []})).unwrap(), "");
    for bad in [
        json!([]),
        json!("text"),
        json!({}),
        json!({"manifests": null}),
        json!({"manifests": [one]}),
        json!({"manifests": [["text"]]}),
    ] {
        assert!(matches!(read(bad.clone()), Err(AnswerFault::NoManifests(_))), "{bad}");
    }
    for (field, value) in [
        ("jobs", json!({"pre_apply": [{"kind": "Job"}]})),
        ("jobs", json!("text")),
        ("urls", json!(["https://example.org/a.yaml"])),
    ] {
        let said = read(json!({"manifests": [[one]], (field): value}));
        assert!(matches!(said, Err(AnswerFault::Unsupported(named)) if named == field), "{field}");
    }
}
