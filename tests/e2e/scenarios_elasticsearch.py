"""What once gave way with a real Elasticsearch on a real Kubernetes, tried again. Not part of CI: `make e2e-scenarios`."""
import json

from bed import claim, condition, get, kubectl, main, nodes_ready, run, say, step, wait, KUBECTL, ROOT
from es import INDEX, Node, Writer
from navigator import install

NS = "trouble-es"
DOCUMENTS = 1_000


def cluster(name):
    return ("elasticsearchcluster", "-n", NS, name)


def manifest(name, replicas=3, **pool):
    """The sample, with another name and pool."""
    spec = json.loads(kubectl("create", "--dry-run=client", "-o", "json", "-f", ROOT / "deploy/samples/elasticsearch-small.yaml"))
    spec["metadata"] = {"name": name, "namespace": NS}
    spec["spec"]["nodePools"][0] |= {"replicas": replicas, **pool}
    return spec


def apply(thing, check=True, *flags):
    done = run(*KUBECTL, "apply", *flags, "-f", "-", stdin=json.dumps(thing), check=check)
    return done.stdout + done.stderr


def node(name, ordinal=0):
    return Node(get("pod", "-n", NS, f"es-{name}-a-{ordinal}")["status"]["podIP"])


def told(name, kind):
    """A condition of a cluster: status, reason and message."""
    found = [entry for entry in get(*cluster(name))["status"]["conditions"] if entry["type"] == kind]
    return [(entry["status"], entry["reason"], entry["message"]) for entry in found][0] if found else None


def tells(name, kind, status, reason):
    def check():
        seen = told(name, kind)
        return bool(seen) and seen[:2] == (status, reason) or str(seen)
    return check


def ready(name, deadline=400):
    wait(f"{name} Ready", tells(name, "Ready", "True", "AllNodesReady"), deadline)


def fill(name, replicas=0, shards=1):
    made = node(name).ask("PUT", f"/{INDEX}", {"settings": {"number_of_shards": shards, "number_of_replicas": replicas}})
    claim("the index is made", made[0] == 200, made)
    done = node(name).write(0, DOCUMENTS)
    claim(f"{DOCUMENTS} documents are acknowledged", len(done) == DOCUMENTS, len(done))


def all_there(name, wanted=range(DOCUMENTS)):
    found = node(name).read(wanted)
    claim(f"all {len(wanted)} documents are there", len(found) == len(wanted), len(found))


def no_threshold(name):
    # The bed's volumes lie on the machine's one disk, however full that is.
    node(name).ask("PUT", "/_cluster/settings", {"persistent": {"cluster.routing.allocation.disk.threshold_enabled": False}})


def restarted(name, when):
    kubectl("patch", *cluster(name), "--type", "merge", "-p", json.dumps({"spec": {"restartedAt": when}}))


def wrong_manifests():
    """Each is refused with a sentence that names what is wrong, and nothing else."""
    def refusal(change, name="wrong"):
        thing = manifest(name)
        change(thing["spec"])
        return apply(thing, False, "--dry-run=server", "--validate=ignore")

    def sum_of(spec):
        spec["plugins"] = [{"name": "analysis-icu", "url": "https://example.com/p.zip", "sha512": "abc"}]

    rows = {
        "a sum that is none": (refusal(sum_of), ["sha512", "128 hexadecimal characters"], []),
        "a version without quotes": (refusal(lambda spec: spec.update(version=7.17)), ["version", "quotes"], ['Invalid value: "number"']),
        "a name that leaves no room": (refusal(lambda spec: None, "x" * 60), ["metadata.name"], ["more than 0 bytes"]),
        "an unknown field beside a wrong one": (
            apply({**manifest("wrong"), "spec": {**manifest("wrong")["spec"], "nodePool": [], "version": "99"}}, False,
                  "--dry-run=server", "--validate=strict"), ["spec.nodePool", "99"], []),
    }
    for what, (seen, words, absent) in rows.items():
        say(f"    {what}: {seen.strip()[:300]}")
        claim(f"{what} is told", all(word in seen for word in words) and not any(word in seen for word in absent), seen)


def warned():
    """A database that anybody may use says so when it is applied, and as long as it is so."""
    seen = apply(manifest("small"))
    say(f"    {seen.strip()[:300]}")
    claim("kubectl apply warns", "Warning" in seen, seen)
    wait("the condition", tells("small", "Secured", "False", "SecurityDisabled"), 60)


def made_again():
    kubectl("delete", *cluster("small"), timeout=400)
    wait("its pods are gone", lambda: get("pods", "-n", NS) == [] or "pods", 120)
    with step("D1: three masters made again on their claims, until Ready"):
        apply(manifest("small"))
        ready("small")
        claim("three nodes", node("small").ask("GET", "/_cluster/health")[1]["number_of_nodes"] == 3)
        all_there("small")


def red_is_not_ready():
    """An index that no node may hold."""
    node("small").ask("PUT", "/nowhere?wait_for_active_shards=0", {"settings": {"number_of_shards": 1, "number_of_replicas": 0,
                                                        "index.routing.allocation.require.box": "none"}})
    wait("Ready is False while health is Red", tells("small", "Ready", "False", "HealthRed"), 90)
    node("small").ask("DELETE", "/nowhere")
    ready("small", 90)


def full():
    """The flood stage, reached by where it is drawn: from then on Elasticsearch refuses writes to the indices of the node."""
    marks = {f"cluster.routing.allocation.disk.watermark.{name}": at for name, at in (("low", "1%"), ("high", "2%"), ("flood_stage", "3%"))}
    on = {"cluster.routing.allocation.disk.threshold_enabled": True, "cluster.info.update.interval": "10s"}
    node("small").ask("PUT", "/_cluster/settings", {"persistent": {**on, **marks}})
    wait("the cluster says that it takes no writes", tells("small", "Ready", "False", "DiskFull"), 180)
    say(f"    {told('small', 'Ready')[2]}")
    node("small").ask("PUT", "/_cluster/settings", {"persistent": {name: None for name in (*on, *marks)}})
    no_threshold("small")
    node("small").ask("PUT", "/_all/_settings", {"index.blocks.read_only_allow_delete": None})
    ready("small", 180)


def events_say_their_own():
    """Each operation has its own sentence, although they share a reason."""
    kubectl("patch", *cluster("small"), "--type", "json", "-p", '[{"op": "replace", "path": "/spec/nodePools/0/replicas", "value": 2}]')
    wait("2/2 nodes", nodes_ready(cluster("small"), 2), 300)
    ready("small")
    uid = get(*cluster("small"))["metadata"]["uid"]
    events = [event for event in get("events.events.k8s.io", "-n", NS) if event["regarding"].get("uid") == uid]
    notes = {event["note"] for event in events if event["reason"] == "OperationStarted"}
    say(f"    {sorted(notes)}")
    claim("the scale-in has a sentence of its own", any("ScaleDown" in note or "hrink" in note or "2 nodes" in note for note in notes), notes)
    repeated = {note for note in notes if sum(event["note"] == note for event in events if event["reason"] == "OperationStarted") > 1}
    claim("no sentence stands twice", not repeated, repeated)


def data_in_the_pod():
    """One node whose data are in its pod, and an order to restart."""
    apply(manifest("brief", 1, persistence={"enabled": False}))
    ready("brief")
    fill("brief")
    uid = get("pod", "-n", NS, "es-brief-a-0")["metadata"]["uid"]
    process = get("pilot", "-n", NS, "es-brief-a-0")["status"]["process"]
    with step("D3: restartedAt where the pod holds the only copy"):
        restarted("brief", "2026-11-20T10:00:00Z")
        wait("another process", lambda: get("pilot", "-n", NS, "es-brief-a-0")["status"].get("process", process) != process
             or json.dumps(process), 300)
        ready("brief")
        claim("it is the same pod", get("pod", "-n", NS, "es-brief-a-0")["metadata"]["uid"] == uid)
        all_there("brief")
    with step("D3: an edit that needs another pod waits, and says why"):
        kubectl("patch", *cluster("brief"), "--type", "json", "-p",
                '[{"op": "replace", "path": "/spec/nodePools/0/resources/requests/cpu", "value": "210m"}]')
        held = wait("it waits", lambda: [blocked for blocked in get(*cluster("brief"))["status"]["operation"].get("blockedBy", [])
                                         if blocked["predicate"] == "DataOutlivesPod"] or "not blocked", 120)
        say(f"    {held[0].get('message')}")
        claim("it is the same pod", get("pod", "-n", NS, "es-brief-a-0")["metadata"]["uid"] == uid)
        all_there("brief")
    kubectl("delete", *cluster("brief"), timeout=300)


def three_in_pods():
    apply(manifest("trio", 3, persistence={"enabled": False}))
    ready("trio")
    no_threshold("trio")
    fill("trio", shards=3)
    with step("D3: three nodes, an index without replicas, restartedAt"):
        with Writer(node("trio"), DOCUMENTS) as writer:
            begun = {pilot["metadata"]["name"]: pilot["status"]["process"]["startTime"] for pilot in get("pilots", "-n", NS)}
            restarted("trio", "2026-11-20T10:00:00Z")

            def all_new():
                now = {pilot["metadata"]["name"]: pilot["status"].get("process", {}).get("startTime") for pilot in get("pilots", "-n", NS)}
                return all(now[name] not in (None, begun[name]) for name in begun) or str(now)
            wait("three other processes", all_new, 600)
            ready("trio")
        all_there("trio", sorted(writer.acknowledged | set(range(DOCUMENTS))))
        say(f"    {len(writer.acknowledged)} acknowledged meanwhile, {writer.failures} refused")
    kubectl("delete", *cluster("trio"), timeout=300)


def job():
    with step("install"):
        install()
    kubectl("create", "namespace", NS)
    with step("wrong manifests"):
        wrong_manifests()
    with step("no TLS and no login: warned"):
        warned()
    ready("small")
    no_threshold("small")
    fill("small", shards=3)
    made_again()
    with step("Red is not Ready"):
        red_is_not_ready()
    with step("D4: the flood stage is told at the cluster"):
        full()
    with step("events say their own sentence"):
        events_say_their_own()
    kubectl("delete", *cluster("small"), timeout=300)
    data_in_the_pod()
    three_in_pods()
    kubectl("delete", "namespace", NS, timeout=300)


if __name__ == "__main__":
    main(job)
