"""Kubernetes' garbage collector decides nothing about databases.

A Cassandra runs while Navigator's API comes and goes under a collector that was just started, while an older store is served,
one that was begun anew, and one that was restored: same objects, same processes, every row. And namespaces end while a part of
Navigator is away. MOMENTS names the seconds after the collector's start at which the API goes for the second time:
78 is when a cluster was lost for it. Not part of CI, but for the stores, which
install_job exchanges: `make e2e-collector`.
"""
import json
import os
import time

import store
from bed import away, claim, get, kubectl, main, restart, say, step, wait
from cluster import Cassandra
from idle import is_gone, made, manifest
from navigator import install, without_controller

NS = "collected"
KEPT = Cassandra(NS)
ROWS = 1_000
MOMENTS = [int(moment) for moment in os.environ.get("MOMENTS", "").split(",") if moment]
# Seconds after the collector's start: when the API is served again, and until when the job watches.
BACK, WATCHED = 40, 105
OURS = "navigator.jetstack.io"
API_SERVICES = (f"v1beta1.{OURS}", f"v1alpha1.{OURS}")
TOLD = "A StatefulSet runs without a cluster"


def nothing_was_lost(kept, before, running, what):
    claim(f"{what}: the same objects", kept.owned() == before, (before, kept.owned()))
    claim("pilot and database are the same processes", kept.running() == running, (kept.running(), running))
    kept.has_rows(ROWS)


def nobody_owns(kept, before):
    """No object of Kubernetes names a kind of ours as owner."""
    named = [f"{kind}/{thing['metadata']['name']}" for kind in before for thing in kept.get(kind)
             if any(owner["apiVersion"].startswith(OURS) for owner in thing["metadata"].get("ownerReferences", []))]
    claim("no object has an owner of our kinds", not named, named)


def api_services():
    """As they are, to be made again."""
    found = [get("apiservice", name) for name in API_SERVICES]
    for one in found:
        one.pop("status")
        one["metadata"] = {key: one["metadata"][key] for key in ("name", "labels") if key in one["metadata"]}
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": found})


def taken_away():
    kubectl("delete", "apiservice", *API_SERVICES)


def the_collector_asks(before, running, moment):
    """The recipe by which databases were lost, with the API's second end at this moment."""
    kept = api_services()
    with away("the API comes and goes"):
        taken_away()
        restart("controller-manager")
        began = time.monotonic()
        KEPT.runs_on(before, began + BACK)
        kubectl("create", "-f", "-", stdin=kept)
        KEPT.runs_on(before, began + moment)
        taken_away()
        KEPT.runs_on(before, began + WATCHED)
        kubectl("create", "-f", "-", stdin=kept)
        KEPT.ready()
    nothing_was_lost(KEPT, before, running, f"the API went {moment} s after the collector's start")


def told(name):
    """Has the controller said that this StatefulSet runs without a cluster?"""
    log = kubectl("logs", "-n", "navigator", "deployment/navigator-controller", "--since=10m", check=False).stdout
    lines = [line for line in log.splitlines() if TOLD in line and f'"{name}"' in line]
    return lines or f"{len(log.splitlines())} lines of the controller, none of them of {name}"


def stores(kept, before, running):
    """An older store, a new one and the right one again, each accepted by a person."""
    later = Cassandra("later", "later")
    kubectl("create", "namespace", later.namespace)
    known = store.identity()
    with away("stores are exchanged"):
        older = store.taken("older")
        store.replaced(older)
        kept.ready()
        later.apply(manifest(later))
        later.wait("its StatefulSet", lambda: later.get("statefulset", later.set))
        newest = store.taken("newest")
        with step("an older store is served"):
            store.replaced(older)
            say(f"    the server says: {store.refuses('lost its latest writes')}")
            store.accepted(known)
            wait("the controller tells what runs without a cluster", lambda: told(later.set))
            claim("the later cluster is not there", get(*later.object) is None)
            claim("and its StatefulSet is", later.get("statefulset", later.set))
            kept.ready()
        with step("a store that was begun anew is served"):
            store.replaced()
            say(f"    the server says: {store.refuses('but this installation has been using')}")
            kubectl("delete", *store.RECORD)
            store.serves()
            claim("it has no cluster", get("cassandraclusters", "-A") == [], get("cassandraclusters", "-A"))
            wait("the controller tells what runs without a cluster", lambda: told(kept.set))
            kept.runs_on(before, time.monotonic() + 45)
            claim("pilot and database are the same processes", kept.running() == running, (kept.running(), running))
        with step("the newest store is restored"):
            store.replaced(newest)
            store.refuses("but this installation has been using")
            store.accepted(known)
            store.taken_up(known)
            kept.ready()
            later.wait("the later cluster", lambda: get(*later.object))
    later.delete()
    is_gone(later)
    kubectl("delete", "namespace", later.namespace, timeout=500)
    nothing_was_lost(kept, before, running, "three stores were served")


def is_over(namespace):
    """For wait(): has it ended? Else what it waits for."""
    return lambda: (found := get("namespace", namespace)) is None or str(found["status"])


def namespaces():
    with step("a namespace ends while the controller is away, and then it is back"):
        kubectl("create", "namespace", "deleted")
        cluster = made("going", "deleted")
        with without_controller():
            kubectl("delete", "namespace", "deleted", "--wait=false")
            wait("Kubernetes deletes the cluster", lambda: "deletionTimestamp" in get(*cluster.object)["metadata"] or "it does not yet")
            finalizers = get(*cluster.object)["metadata"]["finalizers"]
            claim("the cluster waits, by its finalizer", finalizers == [f"{OURS}/teardown"], finalizers)
        wait("the namespace ends", is_over("deleted"), 600)
    with step("a namespace ends while nobody serves our group"):
        kubectl("create", "namespace", "unserved")
        cluster = made("left", "unserved")
        kept = api_services()
        with away("nobody serves the group"):
            taken_away()
            wait("the group is gone", lambda: OURS not in kubectl("api-versions") or "it is there", 300)
            kubectl("delete", "namespace", "unserved", "--wait=false")
            wait("the namespace ends", is_over("unserved"), 600)
            kubectl("create", "-f", "-", stdin=kept)
            wait("the cluster, still in the store", lambda: get(*cluster.object))
        cluster.delete()


def job():
    with step("a Cassandra of one node"):
        install()
        kubectl("create", "namespace", NS)
        KEPT.apply()
        KEPT.ready()
        KEPT.write(ROWS)
        before, running = KEPT.owned(), KEPT.running()
        nobody_owns(KEPT, before)
    for moment in MOMENTS:
        with step(f"the API goes {moment} s after the collector's start"):
            the_collector_asks(before, running, moment)
    stores(KEPT, before, running)
    namespaces()
    with step("the end"):
        KEPT.delete()
        KEPT.pods_are_gone(300)
        kubectl("delete", "namespace", NS, timeout=500)


if __name__ == "__main__":
    main(job)
