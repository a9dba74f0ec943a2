"""What once gave way with a real Elasticsearch on a real Kubernetes, tried again. Not part of CI: `make e2e-scenarios`."""
import json

from bed import claim, kubectl, main, say, step
from cluster import Elasticsearch
from es import Writer
from navigator import install

NS = "trouble-es"
SMALL = Elasticsearch(NS)
DOCUMENTS = 1_000


def wrong_manifests():
    """Each is refused with a sentence that names what is wrong, and nothing else."""
    def refusal(name="wrong", validate="--validate=ignore", **spec):
        wrong = Elasticsearch(NS, name)
        return wrong.apply(wrong.manifest(3, **spec), "--dry-run=server", validate, check=False)

    plugin = {"name": "analysis-icu", "url": "https://example.com/p.zip", "sha512": "abc"}
    rows = {
        "a sum that is none": (refusal(plugins=[plugin]), ["sha512", "128 hexadecimal characters"], []),
        "a version without quotes": (refusal(version=7.17), ["version", "quotes"], ['Invalid value: "number"']),
        "a name that leaves no room": (refusal("x" * 60), ["metadata.name"], ["more than 0 bytes"]),
        "an unknown field beside a wrong one": (
            refusal(validate="--validate=strict", nodePool=[], version="99"), ["spec.nodePool", "99"], []),
    }
    for what, (seen, words, absent) in rows.items():
        say(f"    {what}: {seen.strip()[:300]}")
        claim(f"{what} is told", all(word in seen for word in words) and not any(word in seen for word in absent), seen)


def warned():
    """A database that anybody may use says so when it is applied, and as long as it is so."""
    seen = SMALL.apply(SMALL.manifest(3))
    say(f"    {seen.strip()[:300]}")
    claim("kubectl apply warns", "Warning" in seen, seen)
    SMALL.tells("Secured", "False", "SecurityDisabled")


def made_again():
    SMALL.delete()
    SMALL.pods_are_gone(120)
    with step("D1: three masters made again on their claims, until Ready"):
        SMALL.apply(SMALL.manifest(3))
        SMALL.ready()
        claim("three nodes", SMALL.ask("GET", "/_cluster/health")[1]["number_of_nodes"] == 3)
        SMALL.has_documents(range(DOCUMENTS))


def new_account():
    """The ServiceAccount of the pods is deleted and made again: their tokens are of the earlier one, and kubelet renews them in 48 minutes."""
    before = set(SMALL.uids("pods"))
    kubectl("delete", "serviceaccount", "es-" + SMALL.name, "-n", NS)
    say(f"    {SMALL.tells('Ready', 'Unknown', 'PilotTurnedAway')}")
    claim("health is not known", "health" not in SMALL.status(), SMALL.status().get("health"))
    claim("no pod goes unasked", set(SMALL.uids("pods")) == before)
    SMALL.patch(updateStrategy={"skipPredicates": ["TokenRenewal"]})
    SMALL.wait("other pods", lambda: not before & set(SMALL.uids("pods")) or "not yet", 600)
    SMALL.ready()
    SMALL.patch(updateStrategy=None)
    SMALL.has_documents(range(DOCUMENTS))


def red_is_not_ready():
    """An index that no node may hold."""
    SMALL.ask("PUT", "/nowhere?wait_for_active_shards=0", {"settings": {"number_of_shards": 1, "number_of_replicas": 0,
                                                        "index.routing.allocation.require.box": "none"}})
    SMALL.tells("Ready", "False", "HealthRed")
    SMALL.ask("DELETE", "/nowhere")
    SMALL.ready()


def full():
    """The flood stage, reached by where it is drawn: from then on Elasticsearch refuses writes to the indices of the node."""
    marks = {f"cluster.routing.allocation.disk.watermark.{name}": at for name, at in (("low", "1%"), ("high", "2%"), ("flood_stage", "3%"))}
    on = {"cluster.routing.allocation.disk.threshold_enabled": True, "cluster.info.update.interval": "10s"}
    SMALL.ask("PUT", "/_cluster/settings", {"persistent": {**on, **marks}})
    say(f"    {SMALL.tells('Ready', 'False', 'DiskFull')}")
    SMALL.ask("PUT", "/_cluster/settings", {"persistent": {name: None for name in (*on, *marks)}})
    SMALL.ignore_disk()
    SMALL.ask("PUT", "/_all/_settings", {"index.blocks.read_only_allow_delete": None})
    SMALL.ready()


def events_say_their_own():
    """Each operation has its own sentence, although they share a reason."""
    SMALL.scale(2)
    SMALL.ready(nodes=2, deadline=300)
    uid = SMALL.uid()
    started = [event["note"] for event in SMALL.events("OperationStarted") if event["regarding"].get("uid") == uid]
    notes = set(started)
    say(f"    {sorted(notes)}")
    claim("the scale-in has a sentence of its own", any("ScaleDown" in note or "hrink" in note or "2 nodes" in note for note in notes), notes)
    repeated = {note for note in notes if started.count(note) > 1}
    claim("no sentence stands twice", not repeated, repeated)


def data_in_the_pod():
    """One node whose data are in its pod, and an order to restart."""
    brief = Elasticsearch(NS, "brief")
    brief.apply(brief.manifest(1, {"persistence": {"enabled": False}}))
    brief.ready()
    brief.fill(DOCUMENTS, shards=1)
    uid, process = brief.pod_uid(), brief.pilot()["status"]["process"]
    with step("D3: restartedAt where the pod holds the only copy"):
        brief.patch(restartedAt="2026-11-20T10:00:00Z")
        brief.wait("another process", lambda: brief.pilot()["status"].get("process", process) != process or json.dumps(process))
        brief.ready()
        claim("it is the same pod", brief.pod_uid() == uid)
        brief.has_documents(range(DOCUMENTS))
    with step("D3: an edit that needs another pod waits, and says why"):
        brief.replace("/spec/nodePools/0/resources/requests/cpu", "210m")

        def blocked():
            operation = brief.status()["operation"]
            held = [entry for entry in operation.get("blockedBy", []) if entry["predicate"] == "DataOutlivesPod"]
            return held or f"not blocked: {operation}"
        held = brief.wait("it waits", blocked)
        say(f"    {held[0].get('message')}")
        claim("it is the same pod", brief.pod_uid() == uid)
        brief.has_documents(range(DOCUMENTS))
    brief.delete()


def three_in_pods():
    trio = Elasticsearch(NS, "trio")
    trio.apply(trio.manifest(3, {"persistence": {"enabled": False}}))
    trio.ready()
    trio.ignore_disk()
    trio.fill(DOCUMENTS, shards=3)
    with step("D3: three nodes, an index without replicas, restartedAt"):
        with Writer(trio.client(), DOCUMENTS) as writer:
            begun = trio.processes()
            trio.patch(restartedAt="2026-11-20T10:00:00Z")
            trio.other_processes(begun, 600)
            trio.ready()
        trio.has_documents(writer.acknowledged | set(range(DOCUMENTS)))
        say(f"    {len(writer.acknowledged)} acknowledged meanwhile, {writer.failures} refused")
    trio.delete()


def job():
    with step("install"):
        install()
    kubectl("create", "namespace", NS)
    with step("wrong manifests"):
        wrong_manifests()
    with step("no TLS and no login: warned"):
        warned()
    SMALL.ready()
    SMALL.ignore_disk()
    SMALL.fill(DOCUMENTS, shards=3)
    made_again()
    with step("its ServiceAccount is made anew"):
        new_account()
    with step("Red is not Ready"):
        red_is_not_ready()
    with step("D4: the flood stage is told at the cluster"):
        full()
    with step("events say their own sentence"):
        events_say_their_own()
    SMALL.delete()
    data_in_the_pod()
    three_in_pods()
    kubectl("delete", "namespace", NS, timeout=300)


if __name__ == "__main__":
    main(job)
