"""The API through a real kube-apiserver: both versions of one object, watchers of both, explain, and every sample. That its answers are those of
a CRD is shown by tests/parity."""
import json
import re
import shlex
from pathlib import Path

from bed import ROOT, claim, condition_is, get, kubectl, main, pids, run, step, wait
from cluster import Cassandra
from navigator import install, without_controller
from raw import Watch, request

NS, CORE = "api", "containership-core"
BASE = "/apis/navigator.jetstack.io"
SAMPLES = ROOT / "deploy/samples"
PATCHES = "stop-fence-restart.yaml"

OLD = {
    "apiVersion": "navigator.jetstack.io/v1alpha1", "kind": "CassandraCluster", "metadata": {"name": "old"},
    "spec": {"version": "3.11.1", "image": {"repository": "docker.io/cassandra", "tag": "3.11.1", "pullPolicy": "IfNotPresent"},
             "pilotImage": {"repository": "quay.io/jetstack/navigator-pilot-cassandra", "tag": "v0.1.0"},
             "nodePools": [{"name": "ringnodes", "replicas": 3, "datacenter": "demo-datacenter", "schedulerName": "special",
                            "nodeSelector": {"disk": "ssd"}, "persistence": {"enabled": True, "size": "5Gi", "storageClass": "default"}}]}}


def both_versions():
    """One object, written in the older form, read in both, edited in both, watched in both."""
    path = {version: f"{BASE}/{version}/namespaces/{NS}/cassandraclusters" for version in ("v1alpha1", "v1beta1")}
    watches = {version: Watch(f"{path[version]}?watch=true") for version in path}
    created = json.loads(kubectl("create", "-n", NS, "-f", "-", "-o", "json", stdin=json.dumps(OLD)))
    claim("kubectl creates a v1alpha1 manifest of upstream's", created["apiVersion"].endswith("v1alpha1"), created)
    new = request("GET", f"{path['v1beta1']}/old")[2]
    pool = new["spec"]["nodePools"][0]
    claim("it reads in v1beta1, with scheduling where v1beta1 has it",
          pool["podTemplate"]["spec"] == {"nodeSelector": {"disk": "ssd"}, "schedulerName": "special"}, pool)
    kubectl("patch", f"cassandraclusters.v1beta1.{BASE[6:]}", "-n", NS, "old", "--type=merge",
            "-p", json.dumps({"spec": {"config": {"concurrent_reads": 16}}}))
    old = request("GET", f"{path['v1alpha1']}/old")[2]
    shown = json.loads(old["metadata"]["annotations"]["navigator.jetstack.io/v1beta1"])
    claim("v1alpha1 shows what it cannot say", shown["config"] == {"concurrent_reads": 16}, shown)
    spec = {key: value for key, value in old["spec"].items() if value != {}}
    for key, value in OLD["spec"].items():
        if key != "nodePools":
            seen = {k: v for k, v in spec[key].items() if k != "pullPolicy" or k in value} if isinstance(value, dict) else spec[key]
            claim(f"spec.{key} reads back as written", seen == value, (seen, value))
    kubectl("patch", f"cassandraclusters.v1alpha1.{BASE[6:]}", "-n", NS, "old", "--type=merge", "-p", '{"spec": {"paused": true}}')
    new = request("GET", f"{path['v1beta1']}/old")[2]
    claim("an edit in the older form keeps what that cannot say",
          new["spec"]["paused"] is True and new["spec"]["config"] == {"concurrent_reads": 16}, new["spec"])
    kubectl("delete", "cassandracluster", "-n", NS, "old")
    for version, watch in watches.items():
        wait(f"{version} watcher sees the deletion", lambda w=watch: any(e["type"] == "DELETED" for e in w.events) or str(w.events)[-500:])
        watch.stop()
    seen = {version: [(event["type"], event["object"]["metadata"]["resourceVersion"]) for event in watch.events]
            for version, watch in watches.items()}
    claim("watchers of both versions see the same events", seen["v1alpha1"] == seen["v1beta1"] and len(seen["v1beta1"]) >= 4, seen)
    for version, watch in watches.items():
        claim(f"each event in {version}", all(event["object"]["apiVersion"].endswith(version) for event in watch.events))


def explain():
    for version, resources in {
        "v1beta1": ["cassandracluster.spec.nodePools.persistence", "elasticsearchcluster.spec.updateStrategy", "pilot.status.conditions", "leaderlease.spec.founder"],
        "v1alpha1": ["cassandracluster.spec.nodePools", "elasticsearchcluster.spec.plugins", "pilot.spec.decommission"],
    }.items():
        for resource in resources:
            text = kubectl("explain", resource, f"--api-version=navigator.jetstack.io/{version}")
            claim(f"kubectl explain {resource} ({version})", "DESCRIPTION:" in text and "<empty>" not in text, text)
    recursive = kubectl("explain", "elasticsearchcluster", "--recursive")
    claim("kubectl explain --recursive", recursive.count("\n") > 100, recursive)


def samples():
    """Every sample is accepted as it stands."""
    files = sorted(Path(SAMPLES).rglob("*.yaml"))
    claim("there are samples", len(files) >= 10, files)
    used = set()
    for number, file in enumerate(files):
        named = re.search(r"^  namespace: (\S+)$|namespace: ([a-z-]+)[,}]", file.read_text(), re.MULTILINE)
        namespace = next(filter(None, named.groups())) if named else f"sample-{number}"
        if namespace not in used:
            kubectl("create", "namespace", namespace)
            used.add(namespace)
        if file.name == PATCHES:
            patches(namespace, file)
            continue
        dry = kubectl("apply", "-n", namespace, "--dry-run=server", "--validate=strict", "-f", file, check=False)
        claim(f"{file.relative_to(ROOT)} is valid", dry.returncode == 0, dry.stderr)
        kubectl("apply", "-n", namespace, "--validate=strict", "-f", file)
        first = revisions(namespace)
        kubectl("apply", "-n", namespace, "-f", file)
        claim(f"{file.relative_to(ROOT)} applies twice without a write", revisions(namespace) == first, first)
        kubectl("delete", "-n", namespace, "-f", file)
    for namespace in used:
        kubectl("delete", "namespace", namespace, "--wait=false")
    wait("the samples' namespaces are gone",
         lambda: not used & {namespace["metadata"]["name"] for namespace in get("namespaces")} or "still there", 300)


def patches(namespace, file):
    """The sample that is three patches: each command of its comment, typed as written."""
    kubectl("apply", "-n", namespace, "-f", SAMPLES / "quickstart-cassandra.yaml")
    kubectl("create", "-n", namespace, "-f", "-", stdin=json.dumps({
        "apiVersion": "navigator.jetstack.io/v1beta1", "kind": "Pilot", "metadata": {"name": "cass-demo-ring-0"}}))
    commands = [line[1:].strip() for line in file.read_text().splitlines() if line.startswith("#   kubectl patch")]
    claim(f"{file.relative_to(ROOT)} has its three commands", len(commands) == 3, commands)
    for command in commands:
        kubectl(*shlex.split(command)[1:], "-n", namespace)
    demo = Cassandra(namespace, "demo")
    spec = demo.spec()
    claim("the patches took effect", spec["stopped"] is True and spec["restartedAt"] == "2026-11-20T10:00:00Z", spec)
    claim("the Pilot is fenced", demo.get("pilot", "cass-demo-ring-0")["spec"]["phase"] == "Fenced")


def revisions(namespace):
    """resourceVersion of each object of ours."""
    return {thing["metadata"]["name"]: thing["metadata"]["resourceVersion"]
            for thing in get("cassandraclusters,elasticsearchclusters,pilots,leaderleases", "-n", namespace)}


def what_cannot_run_says_so():
    kubectl("create", "-n", NS, "-f", "-", stdin=json.dumps(OLD))
    old = Cassandra(NS, "old")
    old.tells("Stalled", "True")
    reason = old.told("Stalled")[1]
    claim("a Cassandra 3.x of upstream's is Stalled/UnsupportedVersion", reason == "UnsupportedVersion", reason)
    claim("and nothing was started", get("statefulset,pod", "-n", NS) == [])


def guarded():
    """Who may reach a cluster's pods, as Kubernetes keeps it; a cluster without nodes has it, too."""
    name, shop = "cass-guarded", {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "shop"}}}
    own = {"podSelector": {"matchLabels": {"navigator.jetstack.io/cassandra-cluster-name": "guarded"}}}
    wanted = {(7000, 7001): [own], (9042,): [shop, own], (8080,): None, (12000, 12001, 12002): None}

    def kept():
        policy = get("networkpolicy", "-n", NS, name)
        rules = policy and {tuple(port["port"] for port in rule["ports"]): rule.get("from") for rule in policy["spec"]["ingress"]}
        return rules == wanted and policy["spec"]["podSelector"] == own["podSelector"] or rules

    def network(policy):
        spec = {"security": {"network": {"policy": policy, "clients": [shop]}}}
        kubectl("patch", "cassandracluster", "-n", NS, "guarded", "--type=merge", "-p", json.dumps({"spec": spec}))

    kubectl("create", "-n", NS, "-f", "-", stdin=json.dumps({
        "apiVersion": "navigator.jetstack.io/v1beta1", "kind": "CassandraCluster", "metadata": {"name": "guarded"},
        "spec": {"version": "5.0.6", "nodePools": [{"name": "a", "replicas": 0, "persistence": {"enabled": False}}]}}))
    wait("the cluster's other objects", lambda: get("service", "-n", NS, "cass-guarded-nodes") is not None)
    claim("it has no NetworkPolicy unasked", get("networkpolicy", "-n", NS) == [])
    network("Managed")
    wait("the NetworkPolicy", kept)
    kubectl("patch", "networkpolicy", "-n", NS, name, "--type=json", "-p", '[{"op": "remove", "path": "/spec/ingress/1/from"}]')
    wait("an edit is put back", kept)
    kubectl("delete", "networkpolicy", "-n", NS, name)
    wait("it is made again", kept)
    network("None")
    wait("it is gone", lambda: get("networkpolicy", "-n", NS, name) is None)
    network("Managed")
    wait("it is back", kept)
    kubectl("delete", "cassandracluster", "-n", NS, "guarded", timeout=300)
    claim("it ends with its cluster", get("networkpolicy", "-n", NS) == [])


def agent():
    """An agent runs in a pod on the machine, and writes the keys of Users there."""
    manifest = run(ROOT / "bin/navigator", "manifest", "--cluster-manager", "--agents").stdout
    kubectl("apply", "--server-side", "-f", "-", stdin=manifest)
    for pods in ("deployment/navigator-coordinator", "daemonset/navigator-agent"):
        kubectl("rollout", "status", "-n", CORE, pods, "--timeout=300s", timeout=330)
    key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUm"
    kubectl("apply", "-f", "-", stdin=json.dumps({
        "apiVersion": "containership.io/v3", "kind": "User", "metadata": {"name": "anne", "namespace": CORE},
        "spec": {"name": "Anne", "ssh_keys": [{"name": "laptop", "key": key}]}}))
    wait("the key is on the machine", condition_is("Ready", "True", "user.containership.io", "-n", CORE, "anne"))
    asked = ("exec", "-n", CORE, "daemonset/navigator-agent", "--", "/navigator", "agent")
    claim("sshd is told of it", key in (told := kubectl(*asked, "keys", "containership")), told)
    kubectl("delete", "users.containership.io", "-n", CORE, "anne")
    wait("it is gone from the machine", lambda: key not in (told := kubectl(*asked, "keys", "containership")) or told)
    (process,) = pids("agent", CORE)
    held = re.search(r"CapPrm:\s*(\w+)", (Path("/proc") / str(process) / "status").read_text())[1]
    claim("its process has no capability", int(held, 16) == 0, held)
    kubectl(*asked, "cleanup")
    kubectl("delete", "--wait=false", "-f", "-", stdin=manifest)

    def left():
        """What is not gone yet, in the words of who has to let it go."""
        kinds = [one for one in get("crds") if one["spec"]["group"].endswith("containership.io")]
        there = [one for one in (get("namespace", CORE), *kinds) if one]
        told = {one["metadata"]["name"]: (one["metadata"].get("finalizers"), one["status"].get("conditions")) for one in there}
        return not told or json.dumps(told)[:2000]

    wait("all of it to be gone", left, 300)


def job():
    install()
    kubectl("create", "namespace", NS)
    with step("an agent on the machine"):
        agent()
    with step("both versions of one object"):
        both_versions()
    with step("kubectl explain"):
        explain()
    with step("every sample"), without_controller():
        samples()
    with step("who may reach a cluster"):
        guarded()
    with step("what cannot run says so"):
        what_cannot_run_says_so()
    kubectl("delete", "namespace", NS, timeout=500)


if __name__ == "__main__":
    main(job)
