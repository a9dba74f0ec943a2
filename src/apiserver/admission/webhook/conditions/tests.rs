//! Tests of expressions as administrators write them, and of their outcomes.

use std::{sync::atomic::Ordering::Relaxed, thread};

use serde_json::json;

use super::*;

fn conditions(expressions: &[&str]) -> MatchConditions {
    let condition = |(at, text): (usize, &&str)| MatchCondition {
        name: format!("c{at}"),
        expression: (*text).to_owned(),
    };
    MatchConditions::new(expressions.iter().enumerate().map(condition).collect())
}

/// Judges an update of a cluster, made by a user of some groups.
fn judge(expressions: &[&str]) -> MatchResult {
    let object = json!({
        "metadata": {
            "name": "demo", "labels": {"a": "b", "app.kubernetes.io/name": "demo"},
            "annotations": {},
        },
        "spec": {
            "version": "3.11.19", "ratio": 1.0, "big": u64::MAX, "none": null,
            "nodePools": [{"name": "a", "replicas": 1}, {"name": "b", "replicas": 3}],
        },
    })
    .to_string();
    let request = json!({
        "operation": "UPDATE", "name": "demo", "namespace": "db", "dryRun": false,
        "resource": {"group": "navigator.jetstack.io", "resource": "leaderleases"},
        "userInfo": {
            "username": "system:serviceaccount:db:jane",
            "groups": ["system:serviceaccounts", "system:authenticated"],
        },
    })
    .to_string();
    let seen = ConditionVariables { object: Some(&object), old: None, request: &request };
    conditions(expressions).evaluate(seen)
}

fn outcome(expression: &str) -> Result<bool, String> {
    judge(&[expression]).holds
}

#[test]
fn conditions_of_policy_engines_are_true_or_false() {
    for (expression, expected) in [
        ("request.operation != 'DELETE'", true),
        ("!('system:nodes' in request.userInfo.groups)", true),
        ("request.userInfo.username.startsWith('system:')", true),
        ("!request.userInfo.username.startsWith('system:serviceaccount:kyverno:')", true),
        ("has(object.metadata.labels) && object.metadata.labels['a'] == 'b'", true),
        ("has(object.metadata.labels.c)", false),
        ("'app.kubernetes.io/name' in object.metadata.labels", true),
        ("object.metadata.?labels['x'].orValue('') == 'y'", false),
        ("object.metadata.?labels['a'].orValue('') == 'b'", true),
        ("object.metadata.?missing['a'].orValue('') == ''", true),
        ("object.metadata.?labels.orValue({}).size() == 2", true),
        ("!object.?status.?phase.hasValue()", true),
        ("object.metadata.?labels.optMap(l, 'a' in l).orValue(false)", true),
        ("oldObject == null", true),
        ("object != null && oldObject == null || request.operation == 'DELETE'", true),
        ("object.spec.nodePools.exists(p, p.replicas > 2)", true),
        ("object.spec.nodePools.all(p, p.replicas > 2)", false),
        ("object.spec.nodePools.exists_one(p, p.name == 'a')", true),
        ("object.spec.nodePools.map(p, p.replicas) == [1, 3]", true),
        ("object.spec.nodePools.filter(p, p.name != 'a').size() == 1", true),
        ("object.spec.nodePools.map(p, p.name == 'b', p.replicas)[0] == 3", true),
        // An error of one item counts for nothing once another one decides.
        ("object.spec.nodePools.exists(p, p.replicas > 2 || p.missing)", true),
        ("!request.resource.resource.matches('pilots|.*')", false),
        ("request.resource.resource.matches('^pilots$')", false),
        ("matches(request.name, '^[a-z]+$')", true),
        ("request.resource.group == 'navigator.jetstack.io' && request.name == 'demo'", true),
        ("object.spec.nodePools[0].replicas + 1 >= 2", true),
        ("object.spec.nodePools[0].replicas < 1", false),
        ("object.spec.ratio == 1 && object.spec.big > 1.0", true),
        ("object.spec.version.split('.')[0] == '3'", true),
        ("int(object.spec.version.split('.')[1]) >= 11", true),
        ("object.spec.version.substring(0, 4) == '3.11'", true),
        ("object.spec.version.replace('.', '-') == '3-11-19'", true),
        ("['a', 'b'].join(',') == 'a,b' && 'A'.lowerAscii() == 'a'", true),
        ("object.metadata.name.indexOf('m') == 2 && 'x'.size() == 1", true),
        ("sets.intersects(request.userInfo.groups, ['system:masters', 'admins'])", false),
        ("sets.contains(request.userInfo.groups, ['system:authenticated'])", true),
        ("sets.equivalent([1, 2, 2], [2, 1])", true),
        ("quantity('1Gi').isGreaterThan(quantity('1023Mi'))", true),
        ("quantity('1G').isLessThan(quantity('1Gi')) && quantity('1k') == quantity('1000')", true),
        ("quantity('1k').add(quantity('500m')).compareTo(quantity('1000.5')) == 0", true),
        ("quantity('2').sub(quantity('1500m')).isInteger()", false),
        (
            "quantity('2Ki').asInteger() == 2048 && [quantity('1')].exists(q, q == quantity('1'))",
            true,
        ),
        ("object.spec.none == null && has(object.spec.none)", true),
        ("request.operation in ['CREATE', 'UPDATE'] ? true : false", true),
        ("true", true),
        ("!request.dryRun && type(request.name) == string", true),
    ] {
        assert_eq!(outcome(expression), Ok(expected), "{expression}");
    }
}

#[test]
fn what_cannot_be_told_is_an_error_and_never_an_answer() {
    for (expression, why) in [
        ("object.spec.missing == 1", "No such key: missing"),
        ("object.metadata.labels.missing == 'a'", "No such key: missing"),
        ("oldObject.spec.x == 1", "_._"),
        ("object.spec.nodePools[9].name == 'a'", "out of bounds"),
        ("object.spec.version > 3", "no matching overload"),
        ("object.spec.version + 3 == 4", "Unsupported binary operator"),
        ("object.spec.nodePools.exists(p, p.missing)", "No such key: missing"),
        ("object.spec.nodePools[1.5].name == 'a'", "no index is such a number"),
        ("sets.contains(object.spec.nodePools, 1)", "no matching overload"),
        ("object.metadata.name", "it is string, no bool"),
        ("object.spec.nodePools", "it is list, no bool"),
        ("null", "no bool"),
        ("authorizer.group('').resource('pods').check('get').allowed()", "authorizer"),
        ("!authorizer.requestResource.check('get').allowed()", "authorizer"),
        ("namespaceObject.metadata.name == 'db'", "namespaceObject"),
        ("params.x == 1", "params"),
        ("timestamp('2026-01-01T00:00:00Z') > timestamp('2025-01-01T00:00:00Z')", "timestamp"),
        ("quantity('1GiB').isGreaterThan(quantity('1Mi'))", "no quantity"),
        ("quantity('1500m').asInteger() == 1", "cannot convert"),
        ("quantity('1Gi') > quantity('1Mi')", "no matching overload"),
        ("isQuantity('1Gi')", "isQuantity"),
        ("isURL('http://a')", "isURL"),
        ("object.spec.nodePools.exists(i, p, p.replicas > 2)", "Undeclared reference"),
        ("request.object.metadata.name == 'demo'", "No such key: object"),
        ("request.uid != ''", "No such key: uid"),
        ("request.name.matches('(')", "regex parse error"),
        ("request.name.matches('((a{100}){100}){100}')", "size limit"),
        ("request.dryRun.matches('a')", "no matching overload"),
        ("1 / 0 == 1", "Division by zero"),
        ("9223372036854775807 + 1 > 0", "Overflow"),
        ("Object{x: 1} == 1", "there is no type"),
        ("a &&", "Syntax error"),
        ("", "Syntax error"),
    ] {
        let error = outcome(expression).expect_err(expression);
        assert!(error.contains(why), "{expression}: {error}");
        let told = format!("expression '{expression}' resulted in error: ");
        let compiling = error.starts_with("compilation error: compilation failed: ");
        assert!(error.starts_with(&told) || compiling, "{expression}: {error}");
    }
}

#[test]
fn one_that_is_false_decides_before_errors_do() {
    let (yes, no, bad) = ("true", "false", "object.missing");
    let error = "expression 'object.missing' resulted in error: No such key: missing".to_owned();
    let both = format!("[{error}, {error}]");
    for (expressions, holds, errors) in [
        (vec![], Ok(true), 0),
        (vec![yes, yes], Ok(true), 0),
        (vec![yes, no], Ok(false), 0),
        (vec![bad, no], Ok(false), 1),
        (vec![no, bad], Ok(false), 0),
        (vec![yes, bad], Err(error), 1),
        (vec![bad, yes, bad], Err(both), 2),
    ] {
        assert_eq!(judge(&expressions), MatchResult { holds, errors }, "{expressions:?}");
    }
}

/// Returns an object about as large as an object may be.
fn large() -> String {
    let list: Vec<String> = (0..100_000).map(|at| format!("{at:016}")).collect();
    let map = (0..5_000).map(|at| (at.to_string(), json!({"a": at})));
    let map: serde_json::Map<_, _> = map.collect();
    json!({"list": list, "text": "01".repeat(250_000), "map": map}).to_string()
}

#[test]
fn a_large_object_is_gone_through_once_or_so_and_not_more() {
    let object = large();
    let seen = ConditionVariables { object: Some(&object), old: Some(&object), request: "{}" };
    let (mut payments, mut refused) = ((0, ""), (0, ""));
    for (expression, expected) in [
        ("object.list.exists(x, x == 'a')", Some(false)),
        ("object.list.all(x, x.startsWith('0'))", Some(true)),
        ("object.list.filter(x, x.endsWith('7')).size() == 10000", Some(true)),
        ("object.list.map(x, x).size() == 100000", Some(true)),
        ("object.map.exists(key, object.map[key].a == -1)", Some(false)),
        ("object.list.exists(x, x in object.map)", Some(false)),
        ("object.list.all(x, x >= object.list[0])", Some(true)),
        ("object.list.exists(x, object.list[1e19] == x) || true", Some(true)),
        ("object == oldObject", Some(true)),
        ("object.list.join(',').size() > 0", Some(true)),
        ("object.text.contains('2')", Some(false)),
        ("object.list.exists(x, object.list.exists(y, x == y + 'a'))", None),
        ("object.list.exists(x, object.list.exists(y, y.missing))", None),
        ("object.list.exists(x, object.list == oldObject.list && false)", None),
        ("object.list.exists(x, object.?list.hasValue() && false)", None),
        ("object.list.exists(x, object.list + x == [])", None),
        ("object.list.exists(x, x > object.map)", None),
        ("object.list.exists(x, {'a': 1}[object.list] == 1)", None),
        ("[object.?map].exists(o, object.list.exists(x, o['1'].hasValue() && false))", None),
        ("[optional.of(object)].exists(o, object.list.all(x, o.list.hasValue()))", None),
        ("[optional.of(object)].exists(o, object.list.all(x, o['list'].hasValue()))", None),
        ("object.list.map(x, object.list).size() > 0", None),
        ("object.list.map(x, [object.map]).size() > 0", None),
        ("object.list.map(x, {'a': object.map}).size() > 0", None),
        ("[object.list.map(x, x)].exists(l, object.list.all(x, [l].size() == 1))", None),
        ("[object.text].map(s, s + s).map(s, s + s + s + s).map(s, s + s + s + s + s) == []", None),
        ("object.list.join(object.text).size() > 0", None),
        ("object.text.replace('', object.text).size() > 0", None),
        ("object.text.split('').size() > 0", None),
        ("object.text.indexOf(object.text + 'a') > 0", None),
        ("object.text.matches('[01]*1[01]{400}$')", None),
        ("object.list.exists(x, x.matches(x + '[a-z]{300}'))", None),
        ("sets.contains(object.list, object.list)", None),
        // An expression that was too expensive has no answer, even if an operand would decide.
        ("true || object.list.exists(x, object.list.exists(y, false))", Some(true)),
        ("object.list.exists(x, object.list.exists(y, false)) || true", None),
    ] {
        let meter = CostMeter::new(meter::BUDGET);
        let verdict = conditions(&[expression]).evaluate_within(&meter, seen);
        payments = payments.max((meter.payments.load(Relaxed), expression));
        refused = refused.max((meter.refused.load(Relaxed), expression));
        if let Some(expected) = expected {
            assert_eq!(verdict.holds, Ok(expected), "{expression}");
        } else {
            let error = verdict.holds.expect_err(expression);
            assert!(error.ends_with(OVER), "{expression}: {error}");
        }
    }
    // Each turn of a loop pays: a loop in a loop over all items would pay ten thousand million times.
    println!("most payments: {payments:?}; most after the last unit: {refused:?}");
    assert!(payments.0 < 1_000_000, "{payments:?}");
    // Once nothing is left, every loop ends at its next turn.
    assert!(refused.0 < 32, "{refused:?}");
}

#[test]
fn a_user_may_have_many_groups() {
    let groups: Vec<String> = (0..1_000).map(|at| format!("oidc:group-{at:030}")).collect();
    let request = json!({"userInfo": {"groups": groups}}).to_string();
    let seen = ConditionVariables { object: None, old: None, request: &request };
    let verdict = conditions(&[
        "!('system:nodes' in request.userInfo.groups)",
        "!sets.intersects(request.userInfo.groups, ['system:nodes', 'system:masters'])",
        "request.userInfo.groups.exists(g, g.matches('^oidc:.*9$'))",
        "!request.userInfo.groups.exists(g, g.startsWith('system:'))",
    ])
    .evaluate(seen);
    assert_eq!(verdict.holds, Ok(true));
}

#[test]
fn conditions_share_what_they_may_cost() {
    let object = json!({"list": vec![1; 100]}).to_string();
    let seen = ConditionVariables { object: Some(&object), old: None, request: "{}" };
    let dear = "object.list.exists(x, object.list.exists(y, y == 2)) || true";
    let judge = |expressions: &[&str]| {
        conditions(expressions).evaluate_within(&CostMeter::new(2_000_000), seen)
    };
    assert_eq!(judge(&[dear]), MatchResult { holds: Ok(true), errors: 0 });
    let together = judge(&[dear, dear, dear]);
    assert_eq!(together.errors, 1, "{together:?}");
}

#[test]
fn what_is_nested_deeply_is_refused_before_it_takes_the_stack() {
    let shapes: [fn(usize) -> String; 9] = [
        |n| format!("{}true{}", "[1].exists(x, ".repeat(n), ")".repeat(n)),
        |n| format!("{}[]{} == []", "[1].map(x, ".repeat(n), ")".repeat(n)),
        |n| format!("{}'a'{} == 'a'", "string(".repeat(n), ")".repeat(n)),
        |n| format!("'a'{} == 'a'", ".trim()".repeat(n)),
        |n| format!("{}1{} == []", "[".repeat(n), "]".repeat(n)),
        |n| format!("{}true", "true ? false : ".repeat(n)),
        |n| format!("1{} > 0", " + 1".repeat(n)),
        |n| format!("object{}.hasValue()", ".?a".repeat(n)),
        |n| format!("object{} == 1", ".a[0]".repeat(n)),
    ];
    let mut object = json!(1);
    for _ in 0..50 {
        object = json!({"a": [object]});
    }
    let object = object.to_string();
    let deepest = |shape: &fn(usize) -> String| {
        let seen = ConditionVariables { object: Some(&object), old: Some(&object), request: "{}" };
        let mut evaluated = 0;
        for n in (1..40).chain([90, 10_000]) {
            let verdict = conditions(&[&shape(n), "object == oldObject"]).evaluate(seen);
            let error = verdict.holds.err().unwrap_or_default();
            if !error.starts_with("compilation error") {
                evaluated = n;
            }
        }
        evaluated
    };
    // Half the stack of a server's thread.
    let found = thread::scope(|scope| {
        let small = thread::Builder::new().stack_size(1024 * 1024);
        let found = small.spawn_scoped(scope, || shapes.each_ref().map(deepest)).unwrap();
        found.join().unwrap()
    });
    assert_eq!(found, [6, 6, 30, 30, 30, 31, 30, 30, 15]);
    // A row of operands is no nesting.
    let row = vec!["object.missing == 1"; 500].join(" || ");
    let seen = ConditionVariables { object: Some("{}"), old: None, request: "{}" };
    let error = conditions(&[&row]).evaluate(seen).holds.unwrap_err();
    assert!(error.ends_with("No such key: missing"), "{error}");
    let error = conditions(&[&"true || ".repeat(10_000)]).evaluate(seen).holds.unwrap_err();
    assert!(error.ends_with("it has more than 16384 bytes"), "{error}");
}

#[test]
fn an_error_holds_no_more_of_the_object_than_people_read() {
    let object = json!({"text": "é".repeat(1_000_000)}).to_string();
    let seen = ConditionVariables { object: Some(&object), old: None, request: "{}" };
    let error = conditions(&["object.text - 1 == 2"]).evaluate(seen).holds.unwrap_err();
    assert!(error.len() < 1200 && error.ends_with('…'), "{error}");
}
