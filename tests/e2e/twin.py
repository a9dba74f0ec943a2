"""The same questions to our server and to a CRD of the same shape on the real kube-apiserver: the answers must be alike."""
import json
import os
import re
from pathlib import Path

from bed import claim, kubectl, step, wait
from navigator import without_controller
from raw import request

NS = "twin"
OURS = "navigator.jetstack.io"
TWIN = "twin.example.org"

POOL = {"type": "object", "required": ["name"], "properties": {
    "name": {"type": "string"}, "replicas": {"type": "integer", "format": "int32"}}}
SPEC = {"type": "object", "required": ["version"], "properties": {
    "version": {"type": "string"},
    "paused": {"type": "boolean"},
    "security": {"type": "object", "properties": {"mode": {"type": "string"}}},
    "config": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
    "additionalSeeds": {"type": "array", "x-kubernetes-list-type": "set", "maxItems": 20, "items": {"type": "string"}},
    "pilotImage": {"type": "object", "required": ["repository"], "properties": {
        "repository": {"type": "string"}, "tag": {"type": "string"},
        "pullPolicy": {"type": "string", "enum": ["Always", "IfNotPresent", "Never"]}}},
    "nodePools": {"type": "array", "maxItems": 50, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"], "items": POOL},
}}
CRD = {
    "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
    "metadata": {"name": f"cassandraclusters.{TWIN}"},
    "spec": {
        "group": TWIN, "scope": "Namespaced",
        "names": {"plural": "cassandraclusters", "singular": "cassandracluster", "kind": "CassandraCluster", "listKind": "CassandraClusterList"},
        "versions": [{"name": "v1beta1", "served": True, "storage": True, "subresources": {"status": {}}, "schema": {"openAPIV3Schema": {
            "type": "object", "properties": {"spec": SPEC, "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}}}}],
    },
}


def cluster(group, name="a", metadata=None, **spec):
    return {"apiVersion": f"{group}/v1beta1", "kind": "CassandraCluster", "metadata": {"name": name, **(metadata or {})},
            # Open in so many words, because our server writes what is left out, and with an authenticator, because it warns of a cluster
            # without a login.
            "spec": {"version": "5.0.6", "security": {"mode": "Open"}, "config": {"authenticator": "PasswordAuthenticator"}, **spec}}


# Most creates are dry runs: what one server takes and the other refuses must not stay behind.
DRY = "?dryRun=All"

# What is asked: a name, then a function of the group and the collection's path that returns
# (method, path, body, content type, headers).
CASES = {
    "create": lambda g, p: ("POST", p, cluster(g)),
    "create again": lambda g, p: ("POST", p, cluster(g)),
    "name in capitals": lambda g, p: ("POST", p + DRY, cluster(g, "Bad_Name")),
    "no name": lambda g, p: ("POST", p + DRY, {**cluster(g), "metadata": {}}),
    "namespace of another": lambda g, p: ("POST", p + DRY, cluster(g, "b", {"namespace": "other"})),
    "namespace that is not there": lambda g, p: ("POST", p.replace(f"/{NS}/", "/nowhere/") + DRY, cluster(g, "b")),
    "version of another": lambda g, p: ("POST", p + DRY, {**cluster(g, "b"), "apiVersion": f"{g}/v1"}),
    "bad label value": lambda g, p: ("POST", p + DRY, cluster(g, "b", {"labels": {"a": "not a value!"}})),
    "bad label key": lambda g, p: ("POST", p + DRY, cluster(g, "b", {"labels": {"-bad-": "x"}})),
    "bad annotation key": lambda g, p: ("POST", p + DRY, cluster(g, "b", {"annotations": {"sp ace": "x"}})),
    "annotations over 256 KiB": lambda g, p: ("POST", p + DRY, cluster(g, "b", {"annotations": {"a": "x" * 262145}})),
    "finalizer without a domain": lambda g, p: ("POST", p + DRY, cluster(g, "b", {"finalizers": ["nodomain"]})),
    "owner without uid": lambda g, p: ("POST", p + DRY, cluster(g, "b", {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": ""}]})),
    "two controllers": lambda g, p: ("POST", p + DRY, cluster(g, "b", {"ownerReferences": [
        {"apiVersion": "v1", "kind": "Pod", "name": n, "uid": n, "controller": True} for n in ("x", "y")]})),
    "required field": lambda g, p: ("POST", p + DRY, cluster(g, "b", pilotImage={"tag": "v1"})),
    "enum": lambda g, p: ("POST", p + DRY, cluster(g, "b", pilotImage={"repository": "r", "tag": "v1", "pullPolicy": "Sometimes"})),
    "duplicate in a list map": lambda g, p: ("POST", p + DRY, cluster(g, "b", nodePools=[{"name": "x"}, {"name": "x"}])),
    "duplicate in a set": lambda g, p: ("POST", p + DRY, cluster(g, "b", additionalSeeds=["s", "s"])),
    "too many": lambda g, p: ("POST", p + DRY, cluster(g, "b", additionalSeeds=[f"s{i}" for i in range(21)])),
    "unknown field, strict": lambda g, p: ("POST", p + DRY + "&fieldValidation=Strict", cluster(g, "b", bogus=1)),
    "two unknown fields, strict": lambda g, p: ("POST", p + DRY + "&fieldValidation=Strict", cluster(g, "b", bogus=1, nodePools=[{"name": "x", "other": 2}])),
    "duplicate field, strict": lambda g, p: ("POST", p + DRY + "&fieldValidation=Strict",
                                             json.dumps(cluster(g, "b")).replace('"version": "5.0.6"', '"version": "5.0.6", "version": "5.0.6"')),
    "unknown field, warned of": lambda g, p: ("POST", p + DRY, cluster(g, "b", bogus=1)),
    "unknown field, ignored": lambda g, p: ("POST", p + DRY + "&fieldValidation=Ignore", cluster(g, "b", bogus=1)),
    "fieldValidation that is not one": lambda g, p: ("POST", p + DRY + "&fieldValidation=Maybe", cluster(g, "b")),
    "dryRun that is not one": lambda g, p: ("POST", p + "?dryRun=Some", cluster(g, "b")),
    "generateName": lambda g, p: ("POST", p + DRY, {**cluster(g), "metadata": {"generateName": "gen-"}}),
    "get": lambda g, p: ("GET", p + "/a", None),
    "get nothing": lambda g, p: ("GET", p + "/nothing", None),
    "get with a bad resourceVersion": lambda g, p: ("GET", p + "/a?resourceVersion=x", None),
    "list": lambda g, p: ("GET", p, None),
    "list with a bad label selector": lambda g, p: ("GET", p + "?labelSelector=a%20b%20c", None),
    "list with an unknown field selector": lambda g, p: ("GET", p + "?fieldSelector=spec.bogus%3Dx", None),
    "list with a bad resourceVersion": lambda g, p: ("GET", p + "?resourceVersion=x", None),
    "list with a match but no resourceVersion": lambda g, p: ("GET", p + "?resourceVersionMatch=Exact", None),
    "list with continue and resourceVersion": lambda g, p: ("GET", p + "?limit=1&continue=abc&resourceVersion=5", None),
    "list with a bad continue": lambda g, p: ("GET", p + "?limit=1&continue=abc", None),
    "list sends no initial events": lambda g, p: ("GET", p + "?sendInitialEvents=true", None),
    "protobuf": lambda g, p: ("GET", p, None, None, {"Accept": "application/vnd.kubernetes.protobuf"}),
    "a media type of nobody": lambda g, p: ("GET", p, None, None, {"Accept": "image/png"}),
    "update without resourceVersion": lambda g, p: ("PUT", p + "/a", cluster(g)),
    "update with a stale resourceVersion": lambda g, p: ("PUT", p + "/a", cluster(g, metadata={"resourceVersion": "1"})),
    "update of another name": lambda g, p: ("PUT", p + "/a", cluster(g, "b", {"resourceVersion": "1"})),
    "update of nothing": lambda g, p: ("PUT", p + "/nothing", cluster(g, "nothing", {"resourceVersion": "1"})),
    "merge patch": lambda g, p: ("PATCH", p + "/a", {"spec": {"paused": True}}, "application/merge-patch+json"),
    "merge patch of nothing": lambda g, p: ("PATCH", p + "/nothing", {"spec": {}}, "application/merge-patch+json"),
    "merge patch that is no JSON": lambda g, p: ("PATCH", p + "/a", "{", "application/merge-patch+json"),
    "merge patch with a stale resourceVersion": lambda g, p: ("PATCH", p + "/a", {"metadata": {"resourceVersion": "1"}}, "application/merge-patch+json"),
    "JSON patch": lambda g, p: ("PATCH", p + "/a", [{"op": "replace", "path": "/spec/paused", "value": False}], "application/json-patch+json"),
    "JSON patch whose test fails": lambda g, p: ("PATCH", p + "/a", [{"op": "test", "path": "/spec/version", "value": "4"}], "application/json-patch+json"),
    "a patch of nobody's type": lambda g, p: ("PATCH", p + "/a", {}, "application/json"),
    "force without apply": lambda g, p: ("PATCH", p + "/a?force=true", {"spec": {}}, "application/merge-patch+json"),
    "status without resourceVersion": lambda g, p: ("PUT", p + "/a/status", cluster(g)),
    "subresource of nobody": lambda g, p: ("GET", p + "/a/logs", None),
    "method of nobody": lambda g, p: ("POST", p + "/a", cluster(g)),
    "empty body": lambda g, p: ("POST", p, ""),
    "a body of nobody's type": lambda g, p: ("POST", p, "x", "text/plain"),
    "delete with another uid": lambda g, p: ("DELETE", p + "/a", {"preconditions": {"uid": "another"}}),
    "delete with a bad policy": lambda g, p: ("DELETE", p + "/a?propagationPolicy=Sideways", None),
    "delete": lambda g, p: ("DELETE", p + "/a", None),
    "delete again": lambda g, p: ("DELETE", p + "/a", None),
    "delete a collection": lambda g, p: ("DELETE", p, None),
}

# Why answers differ on purpose. How they differ is in twin.json, with both answers whole; UPDATE_GOLDEN=1 rewrites it.
GOLDEN = Path(__file__).with_suffix(".json")
TYPES = "the list of media types: a CRD names protobuf, in which it reads nothing"
GO = "the part of the text that is Go's own parser speaking"
MEANT = {
    "a body of nobody's type": TYPES,
    "version of another": "the CRD warns of a field that it did not look at",
    "two controllers": "the order of keys in the quoted value",
    "duplicate in a list map": "ours names the key, as built-in kinds do",
    "get with a bad resourceVersion": "400 is what the client did; kube-apiserver answers 500",
    "list with a bad resourceVersion": GO,
    "list with a bad continue": GO,
    "merge patch that is no JSON": GO,
    "empty body": GO,
    "list with continue and resourceVersion": "ours judges the options before the token",
    "list with an unknown field selector": "ours names the fields that it knows, as built-in kinds do",
    "JSON patch whose test fails": "ours says which operation failed",
    "subresource of nobody": "a CRD looks the object up before the subresource",
    "method of nobody": "a CRD takes a POST to an object as a create",
    "delete with another uid": "ours names the resource, as built-in kinds do",
}

LOOSE = ("uid", "creationTimestamp", "resourceVersion", "managedFields", "generation", "selfLink")


def plain(thing):
    """An answer without what must differ: ids, times, revisions, the group."""
    if isinstance(thing, dict):
        return {key: plain(value) for key, value in thing.items() if key not in LOOSE and (key, value) != ("continue", "")}
    if isinstance(thing, list):
        return [plain(item) for item in thing]
    if isinstance(thing, str):
        thing = thing.replace(TWIN, OURS)
        thing = re.sub(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "UID", thing)
        return re.sub(r"gen-[a-z0-9]{5}", "gen-XXXXX", thing)
    return thing


def ask(group, case):
    method, path, body, *rest = CASES[case](group, f"/apis/{group}/v1beta1/namespaces/{NS}/cassandraclusters")
    content_type, headers = (rest + [None, {}])[:2] if rest else ("application/json", {})
    status, answered, text = request(method, path, body, content_type or "application/json", **(headers or {}))
    warnings = sorted(answered.get_all("Warning") or [])
    return {"code": status, "body": plain(text), "warnings": plain(warnings)}


def twin():
    with step(f"{len(CASES)} questions to our server and to a CRD"):
        differ, meant = answers()
        for difference in differ:
            print("    " + difference)
        claim("every answer is alike but those meant to differ", not differ, f"{len(differ)} differ")
        differ_as_meant(meant)


def answers():
    """Answers that differ, and both answers to each question to which they are meant to."""
    with without_controller():
        kubectl("create", "namespace", NS)
        kubectl("apply", "-f", "-", stdin=json.dumps(CRD))
        wait("the twin", lambda: request("GET", f"/apis/{TWIN}/v1beta1/namespaces/{NS}/cassandraclusters")[0] == 200, 60)
        differ, meant = [], {}
        for case in CASES:
            theirs, ours = ask(TWIN, case), ask(OURS, case)
            if ours["body"] != theirs["body"] and isinstance(ours["body"], dict) and ours["body"].get("kind") == "CassandraCluster":
                # Objects differ by the defaults that each schema writes; what they answer with does not.
                ours["body"], theirs["body"] = "an object", theirs["body"] and "an object"
            if case in MEANT:
                meant[case] = {"CRD": theirs, "ours": ours}
            elif ours != theirs:
                differ.append(f"{case}:\n      CRD  {json.dumps(theirs)[:900]}\n      ours {json.dumps(ours)[:900]}")
        kubectl("delete", "crd", f"cassandraclusters.{TWIN}")
        kubectl("delete", "namespace", NS, timeout=200)
    return differ, meant


def differ_as_meant(seen):
    """Each answer that is meant to differ does, and just as it did when somebody looked."""
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(json.dumps(seen, indent=1, sort_keys=True) + "\n")
    looked_at = json.loads(GOLDEN.read_text())
    claim("MEANT and twin.json name the same questions", looked_at.keys() == MEANT.keys() == seen.keys(),
          sorted(looked_at.keys() ^ MEANT.keys() | MEANT.keys() ^ seen.keys()))
    for case, why in MEANT.items():
        both = seen[case]
        claim(f"meant to differ, and does as when somebody looked: {case}: {why}",
              both["CRD"] != both["ours"] and both == looked_at[case], f"{both}, then {looked_at[case]}; UPDATE_GOLDEN=1 rewrites {GOLDEN.name}")
