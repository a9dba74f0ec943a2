"""Deletions of every kind, of clusters whose pods never start: what goes, what stays, and who says so."""
import json

from bed import claim, get, kubectl, main, step
from idle import is_gone, made, manifest
from navigator import install

NS = "deletions"
OURS = "navigator.jetstack.io"
KINDS = ("statefulsets", "services", "pods", "pvc", "serviceaccounts", "roles", "rolebindings", "poddisruptionbudgets")


def job():
    install()
    kubectl("create", "namespace", NS)
    for flag in ("--cascade=background", "--cascade=foreground", "--now"):
        with step(f"kubectl delete {flag}"):
            cluster = made("going", NS)
            cluster.delete(flag, timeout=200)
            is_gone(cluster)
    with step("kubectl delete --cascade=orphan"):
        cluster = made("orphaned", NS)
        before = {kind: cluster.uids(kind) for kind in KINDS}
        cluster.delete("--cascade=orphan", timeout=200)

        def let_go():
            """The controller has taken its marks off and said so, and with that it is done."""
            meta = cluster.get("statefulset", cluster.set)["metadata"]
            marks = [mark for mark in meta.get("annotations", {}) if mark.endswith(("cluster-uid", "store-id"))]
            notes = [event["note"] for event in cluster.events("Orphaned")]
            is_done = not marks and "app.kubernetes.io/managed-by" not in meta["labels"] and any(f"StatefulSet {cluster.set}" in note for note in notes)
            return is_done or json.dumps([meta["labels"], marks, notes])
        cluster.wait("what was its own without our marks, and an event that names it", let_go)
        claim("the cluster is gone", get(*cluster.object) is None)
        after = {kind: cluster.uids(kind) for kind in KINDS}
        claim("everything stays", before == after, (before, after))
        kubectl("delete", "statefulset,service,serviceaccount,role,rolebinding,pdb,pilots", "-n", NS, "-l",
                f"{OURS}/cassandra-cluster-name=orphaned", timeout=200)
    with step("a cluster of the same name made again at once"):
        cluster = made("again", NS)
        first = cluster.uid()
        cluster.delete("--wait=false")

        def second():
            said = cluster.apply(manifest(cluster), check=False)
            found = get(*cluster.object)
            return found and found["metadata"]["uid"] != first or said

        def its_set():
            found = cluster.get("statefulset", cluster.set)
            return found and found["metadata"]["annotations"][f"{OURS}/cluster-uid"] == cluster.uid() or str(found and found["metadata"])
        cluster.wait("another one of its name", second)
        cluster.wait("its own StatefulSet", its_set)
    with step("somebody deletes an owned object; somebody's finalizer holds one"):
        service = ("service", "-n", NS, "cass-again-seeds")
        kubectl("delete", *service)
        cluster.wait("the Service again", lambda: get(*service))
        kubectl("patch", *service, "--type=merge", "-p", '{"metadata": {"finalizers": ["example.org/held"]}}')
        cluster.delete("--wait=false")

        def held():
            said = cluster.told("Reconciling") or ("", "", "")
            return said[1] == "Deleting" and "Service cass-again-seeds (held by example.org/held)" in said[2] or str(cluster.status())
        cluster.wait("status names the Service and who holds it", held)
        kubectl("patch", *service, "--type=merge", "-p", '{"metadata": {"finalizers": null}}')
        is_gone(cluster)
    kubectl("delete", "namespace", NS, timeout=300)


if __name__ == "__main__":
    main(job)
