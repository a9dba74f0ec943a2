"""Our kinds as CustomResourceDefinitions of the same names, made of the schemas that `tests/golden/api` holds to the code."""
import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GROUP = "navigator.jetstack.io"
READY = '.status.conditions[?(@.type=="Ready")]'
# A CRD's column shows one field. Cells that ours counts or falls back to are annotations of the manifests here.
CELL = r".metadata.annotations.example\.org/"


def column(name, path, description, priority=0, kind="string"):
    return {"name": name, "jsonPath": path, "type": kind, "priority": priority, "description": description}


AGE = column("Age", ".metadata.creationTimestamp", "Time since the object was created.", kind="date")
MESSAGE = column("Message", READY + ".message", "Message of the condition Ready.", 1)
CLUSTER = [
    column("Ready", CELL + "ready", "Status of the condition Ready."),
    column("Health", ".status.health", "Health of the database cluster."),
    column("Nodes", CELL + "nodes", "Ready nodes of wanted nodes."),
    column("Version", ".spec.version", "Lowest version that runs."),
    column("Phase", ".status.phase", "Where the object is in its life."),
    AGE,
    column("Datacenters", ".spec.nodePools[0].datacenter", "Datacenters of the node pools.", 1),
    column("TLS", CELL + "tls", "Lowest that any node runs, between nodes and for clients.", 1),
    column("Operation", ".status.operation.type", "What is being done now.", 1),
    column("Blocked-by", ".status.operation.blockedBy[0].predicate", "The predicate that the operation waits for.", 1),
    MESSAGE,
]
PILOT = [
    column("Cluster", ".spec.clusterRef.name", "Cluster that the node belongs to."),
    column("Pool", ".spec.nodePool", "Node pool that the node belongs to."),
    column("Ready", READY + ".status", "Status of the condition Ready."),
    column("Phase", ".status.phase", "Where the object is in its life."),
    column("Version", ".status.version", "Version that the database says it runs."),
    AGE,
    column("Node", ".status.instance.node", "Machine that the pilot runs on.", 1),
    column("Restarts", ".status.process.restarts", "Starts of the database beyond the first.", 1, "integer"),
    column("Heartbeat", ".status.lastHeartbeatTime", "Time since the pilot last reported.", 1, "date"),
    column("Last-exit", ".status.lastTermination.reason", "How the previous process ended.", 1),
    MESSAGE,
]
LEASE = [
    column("Holder", ".spec.holderIdentity", "Who holds the lease."),
    column("Renewed", ".spec.renewTime", "Time since the lease was renewed.", kind="date"),
    column("Transitions", ".spec.leaseTransitions", "Changes of holder so far.", kind="integer"),
    AGE,
]
# Kind, plural, short names, categories, versions, columns.
KINDS = [
    ("CassandraCluster", "cassandraclusters", ["cassandra", "cassc"], ["navigator", "databases"], ["v1beta1", "v1alpha1"], CLUSTER),
    ("ElasticsearchCluster", "elasticsearchclusters", ["esc", "elasticsearch"], ["navigator", "databases"], ["v1beta1", "v1alpha1"],
     [one for one in CLUSTER if one["name"] != "Datacenters"]),
    ("Pilot", "pilots", ["pil"], ["navigator"], ["v1beta1", "v1alpha1"], PILOT),
    ("LeaderLease", "leaderleases", ["ll"], ["navigator"], ["v1beta1"], LEASE),
]

KEPT = ("type", "format", "description", "enum", "nullable", "required", "pattern", "minimum", "maximum", "minLength", "maxLength",
        "minItems", "maxItems", "x-kubernetes-list-type", "x-kubernetes-list-map-keys", "x-kubernetes-map-type")
OPEN = "x-kubernetes-preserve-unknown-fields"
EITHER = "x-kubernetes-int-or-string"


def structural(schema, known):
    """A schema without references, of what a structural schema may have."""
    made = {}
    for part in [schema, *schema.get("allOf", [])]:
        if "$ref" in part:
            made |= structural(known[part["$ref"].rpartition("/")[2]], known)
    made |= {key: schema[key] for key in KEPT if key in schema}
    if schema.get("properties"):
        made["properties"] = {name: structural(inner, known) for name, inner in schema["properties"].items()}
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            made[key] = structural(schema[key], known)
    # A CRD's lists have keys only where each is required.
    if any(key not in made["items"].get("required", []) for key in made.get("x-kubernetes-list-map-keys", [])):
        del made["x-kubernetes-list-map-keys"], made["x-kubernetes-list-type"]
    is_open = "type" not in made or made["type"] == "object" and not made.keys() & {"properties", "additionalProperties"}
    if made.get(EITHER) or schema.get(EITHER) or schema.get("format") == "int-or-string" or "oneOf" in schema or "anyOf" in schema:
        made = {key: value for key, value in made.items() if key not in ("type", "format", OPEN)} | {EITHER: True}
    elif is_open or schema.get(OPEN):
        made[OPEN] = True
    return made


def definitions():
    known = json.loads((ROOT / "src/machinery/schema/kubernetes.json").read_text())
    known = known.get("definitions", known)
    for version in ("v1beta1", "v1alpha1"):
        known |= json.loads((ROOT / f"tests/golden/api/schema/{version}.json").read_text())
    return [definition(known, *kind) for kind in KINDS]


def has(schema, path):
    """Ours selects by these fields in every version; a CRD where the version has them."""
    for name in path.strip(".").split("."):
        schema = schema.get("properties", {}).get(name, {})
    return bool(schema)


def definition(known, kind, plural, short, categories, versions, columns):
    served = []
    for version in versions:
        whole = known[f"com.jetstack.navigator.{version}.{kind}"]
        schema = structural({**whole, "properties": {
            # kube-apiserver has its own schemas for the three fields that are left out.
            name: inner for name, inner in whole["properties"].items() if name not in ("apiVersion", "kind", "metadata")}}, known)
        fields = [one for one in whole.get("x-kubernetes-selectable-fields", []) if has(schema, one["jsonPath"])]
        # The order differs by version: kube-apiserver refuses two versions with equal selectable fields and unequal schemas.
        fields = fields[::-1] if served else fields
        served.append({
            "name": version, "served": True, "storage": version == "v1beta1", "schema": {"openAPIV3Schema": schema},
            "additionalPrinterColumns": columns, "selectableFields": fields,
            "subresources": {"status": {}} if "status" in whole["properties"] else {}})
    return {
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {"group": GROUP, "scope": "Namespaced", "versions": served, "names": {
            "plural": plural, "singular": kind.lower(), "kind": kind, "listKind": f"{kind}List", "shortNames": short, "categories": categories}}}


if __name__ == "__main__":
    print(json.dumps({"apiVersion": "v1", "kind": "List", "items": definitions()}))
