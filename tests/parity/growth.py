"""Volumes that grow, and pods that a quota refuses, with a real API server, StatefulSet controller and binder of volumes.

`make test-growth`, a part of `make full`; two and a half minutes.

The controller is ours. What machines do is scripted here: pods and pilots say that they run, and a driver gives volumes and file systems the
size that claims ask for.
"""
import json
import os
import threading
import time

from world import BIN, until

CONTROLLERS = "statefulset-controller,persistentvolume-binder-controller,resourcequota-controller,garbage-collector-controller"
GROUP = "navigator.jetstack.io"
CLUSTERS = f"/apis/{GROUP}/v1beta1/namespaces/default/cassandraclusters"
PILOTS = f"/apis/{GROUP}/v1beta1/namespaces/default/pilots"
SETS, CORE = "/apis/apps/v1/namespaces/default/statefulsets", "/api/v1/namespaces/default"


def now():
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def begin(world):
    world.user = "admin"
    config = world.folder / "controller-manager.kubeconfig"
    world.begin("second-manager", BIN / "kube-controller-manager", f"--kubeconfig={config}", f"--service-account-private-key-file={world.pki}/sa.key",
                "--use-service-account-credentials", "--leader-elect=false", "--secure-port=10270", "--resource-quota-sync-period=2s",
                f"--controllers={CONTROLLERS}")
    path = "/api/v1/namespaces/navigator/serviceaccounts/navigator-controller/token"
    token = world.ask(path, "POST", {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 7200}})
    config = world.kubeconfig("navigator-controller", "navigator", token=token["status"]["token"])
    world.begin("controller", os.environ["NAVIGATOR"], "controller", f"--kubeconfig={config}", "--install-namespace=navigator", "--pilot-image=navigator:test")


class Machines(threading.Thread):
    """The kubelet, the pilots and the driver of volumes, as far as the controller sees them."""

    def __init__(self, world):
        super().__init__(daemon=True)
        self.world = world

    def run(self):
        while True:
            try:
                self.look()
            except Exception as error:  # noqa: BLE001: what changed meanwhile is looked at again
                self.world.say(f"machines: {error}")
            time.sleep(1)

    def patch(self, path, body):
        resource, name = path.rsplit("/", 2)[-2:]
        self.world.kubectl("patch", resource, name, "--subresource=status", "--type=merge", "-p", json.dumps(body))

    def look(self):
        for pod in self.world.ask(f"{CORE}/pods")["items"]:
            name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
            ready = {"type": "Ready", "status": "True", "lastTransitionTime": now()}
            running = {"name": "cassandra", "ready": True, "restartCount": 0, "image": "", "imageID": "", "state": {"running": {"startedAt": now()}}}
            if pod["status"]["phase"] != "Running":
                self.patch(f"pods/{name}", {"status": {"phase": "Running", "conditions": [ready], "containerStatuses": [running]}})
            self.report(name, uid)
        for claim in self.world.ask(f"{CORE}/persistentvolumeclaims")["items"]:
            asked = claim["spec"]["resources"]["requests"]
            if claim["status"].get("phase") == "Bound" and claim["status"].get("capacity") != asked:
                self.patch(f"persistentvolumeclaims/{claim['metadata']['name']}", {"status": {"capacity": asked}})

    def report(self, name, uid):
        pilot = self.world.ask(f"{PILOTS}/{name}")

        def condition(kind, reason):
            return {"type": kind, "status": "True", "reason": reason, "message": "", "lastTransitionTime": now()}
        self.patch(f"pilots/{name}", {"status": {
            "phase": "Running", "observedGeneration": pilot["metadata"]["generation"], "lastHeartbeatTime": now(), "health": "Green",
            "conditions": [condition("Ready", "CassandraStarted"), condition("ConfigApplied", "ConfigCurrent"), condition("PreflightPassed", "PreflightPassed")],
            "instance": {"runtime": "Kubernetes", "uid": uid}, "identity": {"clusterID": "x", "nodeID": uid}, "process": {"pid": 7},
            "configHash": pilot["spec"]["configHash"], "version": pilot["spec"]["version"]}})


def cluster(name, storage):
    return {"apiVersion": f"{GROUP}/v1beta1", "kind": "CassandraCluster", "metadata": {"name": name, "namespace": "default"},
            "spec": {"version": "5.0.6", "security": {"mode": "Open"},
                     "nodePools": [{"name": "a", "replicas": 2, "resources": {"limits": {"memory": "2Gi"}},
                                    "persistence": {"size": "1Gi", "storageClass": storage}}]}}


def volumes(storage, expands, count):
    yield {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": storage}, "provisioner": "example.com/none",
           "allowVolumeExpansion": expands}
    for number in range(count):
        yield {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": f"{storage}-{number}"},
               "spec": {"capacity": {"storage": "2Gi" if storage == "grows" and number == 2 else "1Gi"}, "accessModes": ["ReadWriteOnce"],
                        "storageClassName": storage, "csi": {"driver": "example.com", "volumeHandle": f"{storage}-{number}"}}}


class Shop:
    """One cluster, as kubectl sees it."""

    def __init__(self, world, name):
        self.world, self.name = world, name

    def status(self):
        return self.world.ask(f"{CLUSTERS}/{self.name}").get("status", {})

    def condition(self, kind):
        return next((one for one in self.status().get("conditions", []) if one["type"] == kind), {})

    def ready(self, nodes):
        status, ready = self.status(), self.condition("Ready")
        return (ready.get("status"), status.get("readyReplicas")) == ("True", nodes) or (ready, status.get("operation"))

    def blocked(self):
        return (self.status().get("operation") or {}).get("blockedBy") or [{}]

    def edit(self, field, value):
        patch = [{"op": "replace", "path": f"/spec/nodePools/0/{field}", "value": value}]
        return self.world.kubectl("patch", "cassandracluster", self.name, "--type=json", "-p", json.dumps(patch))

    def pods(self):
        labels = f"labelSelector={GROUP}%2Fcassandra-cluster-name%3D{self.name}"
        return sorted((pod["metadata"]["name"], pod["metadata"]["uid"], pod["metadata"]["ownerReferences"][0]["uid"] if
                       pod["metadata"].get("ownerReferences") else None) for pod in self.world.ask(f"{CORE}/pods?{labels}")["items"])

    def sizes(self):
        claims = [one for one in self.world.ask(f"{CORE}/persistentvolumeclaims")["items"] if f"cass-{self.name}-a-" in one["metadata"]["name"]]
        return [one["spec"]["resources"]["requests"]["storage"] for one in claims]


def grow(world):
    shop = Shop(world, "shop")
    before, old = shop.pods(), world.ask(f"{SETS}/cass-shop-a")
    begun = time.monotonic()
    shop.edit("persistence/size", "2Gi")
    until("claims of 2Gi", lambda: shop.sizes() == ["2Gi", "2Gi"] or shop.sizes())

    def anew():
        found = world.ask(f"{SETS}/cass-shop-a")
        size = found["spec"]["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"]
        uid = found["metadata"]["uid"]
        adopted = uid != old["metadata"]["uid"] and all(owner == uid for _, _, owner in shop.pods())
        return (size == "2Gi" and found["spec"]["replicas"] == 2 and adopted) or (size, uid, shop.pods())
    until("a StatefulSet of 2Gi around the same pods", anew)
    assert [pod[:2] for pod in shop.pods()] == [pod[:2] for pod in before], "a pod was made anew"
    until("shop is ready", lambda: shop.ready(2))
    storage = shop.status()["nodePools"]["a"]["storage"]
    assert storage == {"requested": "2Gi", "smallest": "2Gi"}, storage
    world.say(f"volumes grew in {time.monotonic() - begun:.0f} s, and the pods are the same")
    shop.edit("replicas", 3)
    until("a new node with a claim of 2Gi", lambda: shop.sizes() == ["2Gi"] * 3 or shop.sizes())
    until("shop is ready", lambda: shop.ready(3))


def refuse(world):
    fixed = Shop(world, "fixed")
    print(fixed.edit("persistence/size", "2Gi"))
    until("VolumeExpands", lambda: fixed.blocked()[0].get("predicate") == "VolumeExpands" or fixed.status())
    world.say(f"told: {fixed.blocked()[0]}")
    assert "must support resize" in fixed.blocked()[0]["message"], fixed.blocked()
    assert fixed.sizes() == ["1Gi", "1Gi"]
    fixed.edit("persistence/size", "1Gi")
    until("fixed is ready", lambda: fixed.ready(2))


def limit(world):
    fixed = Shop(world, "fixed")
    hard = {"pods": "5"}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "small", "namespace": "default"}, "spec": {"hard": hard}}
    world.kubectl("create", "-f", "-", stdin=json.dumps(quota))
    until("the quota counts", lambda: world.ask(f"{CORE}/resourcequotas/small").get("status", {}).get("used") == {"pods": "5"}
          or world.ask(f"{CORE}/resourcequotas/small"))
    begun = time.monotonic()
    fixed.edit("replicas", 3)
    until("PodAdmitted", lambda: fixed.blocked()[0].get("predicate") == "PodAdmitted" or fixed.status())
    took = time.monotonic() - begun
    world.say(f"told after {took:.0f} s: {fixed.blocked()[0]}")
    assert took < 60 and "exceeded quota: small" in fixed.blocked()[0]["message"]
    until("Stalled", lambda: fixed.condition("Stalled").get("reason") == "QuotaExceeded" or fixed.condition("Stalled"), patience=180)
    world.say(f"stalled after {time.monotonic() - begun:.0f} s: {fixed.condition('Stalled')['message']}")


def work(world, *_):
    begin(world)
    for one in [*volumes("grows", True, 3), *volumes("fixed", False, 3)]:
        world.kubectl("create", "-f", "-", stdin=json.dumps(one))
    for name, storage in (("shop", "grows"), ("fixed", "fixed")):
        world.kubectl("create", "-f", "-", stdin=json.dumps(cluster(name, storage)))
    Machines(world).start()
    for name in ("shop", "fixed"):
        until(f"{name} is ready", lambda name=name: Shop(world, name).ready(2))
    grow(world)
    refuse(world)
    limit(world)
