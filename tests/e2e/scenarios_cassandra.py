"""What once gave way with a real Cassandra on a real Kubernetes, tried again. Not part of CI: `make e2e-scenarios`."""
import json
import time

from bed import claim, kubectl, main, say, step
from cluster import Cassandra
from navigator import install

NS = "trouble-cass"
TRI, WRONG = Cassandra(NS, "tri"), Cassandra(NS, "wrong")
ROWS = 2_000
COPIES = 2


def wrong_manifests():
    def refusal(*flags, **spec):
        return WRONG.apply(WRONG.manifest(1, **spec), "--dry-run=server", *flags, check=False)

    rows = {
        "a version that does not run yet": (refusal(version="6.0.0"), "version", 1000),
        "an unknown field": (refusal("--validate=ignore", nodePool=[]), "", 1000),
        "an unknown field, strictly": (refusal("--validate=strict", nodePool=[]), "spec.nodePool", 1000),
    }
    for what, (seen, word, most) in rows.items():
        say(f"    {what}: {seen.strip()[:300]}")
        claim(f"{what} is told, and in a few lines", word in seen and len(seen) < most, seen)


def reapplied():
    """An unknown field in a manifest whose object exists: the reason, and not the object."""
    seen = TRI.apply(TRI.manifest(2, nodePool=[]), "--validate=strict", check=False)
    say(f"    {seen.strip()[:400]}")
    claim("the field is named, in a few lines", "nodePool" in seen and len(seen.splitlines()) <= 6, seen)


def labels_come_back():
    """F3: a label that the controller finds its objects by is taken off."""
    before = time.monotonic()
    kubectl("label", "statefulset", "-n", NS, TRI.set, "app.kubernetes.io/managed-by-")

    def is_back():
        labels = TRI.get("statefulset", TRI.set)["metadata"]["labels"]
        return labels.get("app.kubernetes.io/managed-by") == "navigator" or json.dumps(labels)
    TRI.wait("the label is back", is_back, every=0.5)
    say(f"    after {time.monotonic() - before:.1f} s")


def grace():
    """F6: the pilot goes by the grace period of its own pod."""
    for seconds in (60, 1800):
        TRI.patch(podTemplate={"spec": {"terminationGracePeriodSeconds": seconds}})

        def agree():
            told = []
            for pod in TRI.pods():
                box = next(entry for entry in pod["spec"]["containers"] if entry["name"] == "cassandra")
                told += [entry["value"] for entry in box["env"] if entry["name"] == "NAVIGATOR_TERMINATION_GRACE_PERIOD"]
                told.append(str(pod["spec"]["terminationGracePeriodSeconds"]))
            return len(told) == 4 and all(entry.removesuffix("s") == str(seconds) for entry in told) or str(told)
        TRI.wait(f"pods and their pilots go by {seconds} s", agree, 600)
        TRI.ready()


def partly_kept():
    """F1: the founder's claim is lost, another node's is kept."""
    TRI.delete(timeout=500)
    TRI.pods_are_gone(120)
    kubectl("delete", "pvc", "-n", NS, TRI.claim_name(0), timeout=120)
    with step("F1: made again, the founder's claim lost: one ring, every row"):
        TRI.apply(TRI.manifest(2))
        TRI.ready(nodes=2, deadline=900)
        for ordinal in (0, 1):
            with TRI.client(ordinal) as asked:
                nodes, found = asked.nodes(), asked.read(ROWS)
            claim(f"node {ordinal} knows two nodes and reads all {ROWS} rows", len(nodes) == 2 and found == ROWS, (nodes, found))


def cannot_start():
    """F2: a pool that cannot start is added and taken back."""
    broken = TRI.manifest(2)
    broken["spec"]["nodePools"].append({**broken["spec"]["nodePools"][0], "name": "b", "replicas": 1,
                                        "jvm": {"options": ["-XX:NoSuchOption=1"]}})
    other = f"cass-{TRI.name}-b-0"
    with step("F2: a pool that cannot start is added; it is told"):
        TRI.apply(broken)

        def crashed():
            status = (TRI.get("pilot", other) or {}).get("status", {})
            return [status["lastTermination"]] if status.get("lastTermination") else json.dumps(status)
        seen = TRI.wait("its database crashed", crashed, 400)[0]
        say(f"    {json.dumps(seen)[:300]}")
    with step("F2: it is taken back, and goes"):
        TRI.apply(TRI.manifest(2))
        TRI.wait("its Pilot and pod are gone", lambda: TRI.get("pilot", other) is None and TRI.get("pod", other) is None
                 or "still there", 300)
        TRI.ready()


def roll():
    """F4: the restarts of two nodes are two sentences."""
    TRI.patch(restartedAt="2026-11-20T10:00:00Z")
    # Two nodes and two copies: a quorum needs both.
    TRI.patch(updateStrategy={"skipPredicates": ["RangesKeepQuorum"]})

    def both():
        notes = {event["note"] for event in TRI.events("RestartPilot")}
        return all(any(TRI.pod_name(ordinal) in note for note in notes) for ordinal in (0, 1)) and [notes] or str(notes)
    say(f"    {TRI.wait('each restart is told of its own node', both, 600)[0]}")
    TRI.ready()
    started = [event["note"] for event in TRI.events("OperationStarted") if event["regarding"]["name"] == TRI.name]
    claim("no two operations share a sentence", len(started) == len(set(started)), started)
    say(f"    {started}")


def held():
    """A pod that is deleted while the canary is held comes back as it was; it came back with the change."""
    def tries(pod):
        return pod["metadata"]["labels"].get("tries")
    TRI.patch(podTemplate={"metadata": {"labels": {"tries": "it"}}},
              updateStrategy={"canary": {"replicas": 1}, "skipPredicates": ["RangesKeepQuorum"]})
    TRI.tells("Ready", "False", "PredicateBlocked", 400)
    TRI.wait("both serve", lambda: TRI.status().get("readyReplicas") == 2 or json.dumps(TRI.status()), 300)
    claim("one pod has it", [tries(pod) for pod in TRI.pods()] == [None, "it"], TRI.pods())
    for ordinal in (0, 1):
        uid = TRI.pod_uid(ordinal)
        kubectl("delete", "pod", "-n", NS, TRI.pod_name(ordinal), timeout=400)
        TRI.wait("another pod", lambda: TRI.pod_uid(ordinal) not in (None, uid) or uid, 300)
        TRI.wait("both serve", lambda: TRI.status().get("readyReplicas") == 2 or json.dumps(TRI.status()), 300)
        seen = [tries(pod) for pod in TRI.pods()]
        say(f"    after the end of {ordinal}: {seen}")
        claim("each is as it was", seen == [None, "it"], seen)
    TRI.patch(updateStrategy={"canary": None})
    TRI.wait("both have it", lambda: [tries(pod) for pod in TRI.pods()] == ["it", "it"] or str([tries(pod) for pod in TRI.pods()]), 400)
    TRI.ready()


def job():
    with step("install"):
        install()
    kubectl("create", "namespace", NS)
    with step("wrong manifests"):
        wrong_manifests()
    with step("two nodes, until Ready"):
        TRI.apply(TRI.manifest(2))
        TRI.ready(nodes=2, deadline=900)
        TRI.write(ROWS, copies=COPIES)
    with step("a wrong manifest of what exists"):
        reapplied()
    with step("F3: labels come back"):
        labels_come_back()
    cannot_start()
    with step("F4: a rolling restart"):
        roll()
    with step("N2: a canary is held while pods end"):
        held()
    partly_kept()
    with step("F6: grace periods"):
        grace()
    kubectl("delete", "namespace", NS, timeout=2000)


if __name__ == "__main__":
    main(job)
