"""Volumes of real nodes grow under a client that writes and reads at QUORUM; a volume that is full to the last byte holds its node, which goes on
when its claim has grown.

The bed has no driver that can grow a volume. Each volume here is a tmpfs of its own, and this job does what a driver's resizer does: it enlarges the
file system and says so in the PersistentVolume; the claim is kubelet's and Kubernetes'. Not part of CI: `make e2e-storage`.
"""
import json
import os
import threading
import time

from bed import RUN, claim, get, kubectl, main, run, say, step
from cluster import Cassandra
from cql import QuorumClient
from navigator import install

NS = "storage"
CLASS = "growing"
GROWS = Cassandra(NS, "grows")
ROWS = 2_000
SIZES = ["500Mi", "700Mi", "900Mi"]
BALLAST = "ballast"


def mib(size):
    """A size in Mi or Gi, or in plain bytes, as a number of MiB."""
    units = {"Gi": 1024, "Mi": 1}
    return int(size[:-2]) * units[size[-2:]] if size[-2:] in units else int(size) // 2**20


def volumes(count):
    """So many volumes of a class that may grow, each a tmpfs."""
    things = [{"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": CLASS},
               "provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer", "allowVolumeExpansion": True}]
    machine = get("nodes")[0]["metadata"]["labels"]["kubernetes.io/hostname"]
    here = {"required": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [machine]}]}]}}
    for number in range(count):
        place = RUN / "volumes" / f"{CLASS}-{number}"
        place.mkdir(parents=True)
        run("mount", "-t", "tmpfs", "-o", f"size={mib(SIZES[0])}m,mode=0777", "tmpfs", place)
        things.append({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": place.name}, "spec": {
            "capacity": {"storage": SIZES[0]}, "accessModes": ["ReadWriteOnce"], "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": CLASS, "local": {"path": str(place)}, "nodeAffinity": here}})
    kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": things}))


class Driver(threading.Thread):
    """Enlarges what a claim asks for, as the resizer of a storage driver does."""

    def __init__(self):
        super().__init__(daemon=True)
        self.told, self.by_hand, self.failed, self.ends = {}, [], [], threading.Event()

    def run(self):
        while not self.ends.wait(1):
            try:
                self.look()
            except Exception as error:  # noqa: BLE001 - the job's own claims say what is missing
                self.failed.append(str(error)[:300])

    def look(self):
        for held in GROWS.get("pvc"):
            name, wanted = held["metadata"]["name"], held["spec"]["resources"]["requests"]["storage"]
            volume = held["spec"].get("volumeName")
            has = held.get("status", {}).get("capacity", {}).get("storage")
            if not volume or not has or mib(has) >= mib(wanted):
                continue
            if self.told.get(name, (None, 0))[0] != wanted:
                run("mount", "-o", f"remount,size={mib(wanted)}m", RUN / "volumes" / volume)
                kubectl("patch", "pv", volume, "--type", "merge", "-p", json.dumps({"spec": {"capacity": {"storage": wanted}}}))
                self.told[name] = wanted, time.monotonic()
            elif time.monotonic() - self.told[name][1] > 30:
                # Kubelet did not: it grows what it knows to need that.
                patch = {"status": {"capacity": {"storage": wanted}, "conditions": []}}
                kubectl("patch", "pvc", "-n", NS, name, "--subresource", "status", "--type", "merge", "-p", json.dumps(patch))
                self.by_hand.append(name)


def grow(size):
    manifest = json.loads(kubectl("get", *GROWS.object, "-o", "json"))
    pools = manifest["spec"]["nodePools"]
    pools[0]["persistence"]["size"] = size
    GROWS.patch(nodePools=pools)


def file_system(ordinal):
    """Size and free bytes of a node's volume, in MiB."""
    seen = os.statvfs(place(ordinal))
    return seen.f_blocks * seen.f_frsize // 2**20, seen.f_bavail * seen.f_frsize // 2**20


def place(ordinal):
    return RUN / "volumes" / GROWS.get("pvc", GROWS.claim_name(ordinal))["spec"]["volumeName"]


def volumes_grow(driver):
    with step(f"two volumes grow to {SIZES[1]} under a client"):
        before, begun = GROWS.uids("pods"), time.monotonic()
        process = [GROWS.pilot(node)["status"]["process"]["startTime"] for node in (0, 1)]
        grow(SIZES[1])

        def grown():
            sizes = [mib(held["status"]["capacity"]["storage"]) for held in GROWS.get("pvc")]
            return min(sizes) >= mib(SIZES[1]) or json.dumps([sizes, GROWS.status(), driver.failed[-1:]])
        GROWS.wait("the claims have grown", grown, 300)
        GROWS.ready(nodes=2)
        say(f"    Ready after {time.monotonic() - begun:.0f} s; said by hand of {driver.by_hand}")
        claim("the file systems have it", all(file_system(node)[0] >= mib(SIZES[1]) for node in (0, 1)), [file_system(node) for node in (0, 1)])
        claim("the pods are the same", GROWS.uids("pods") == before, before)
        claim("so are the processes", process == [GROWS.pilot(node)["status"]["process"]["startTime"] for node in (0, 1)], process)
        made = GROWS.get("statefulset")[0]["spec"]["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"]
        claim("new nodes get the new size", made == SIZES[1], made)


def fill(ordinal):
    """Leaves no byte on a node's volume."""
    with open(place(ordinal) / BALLAST, "wb") as ballast:
        try:
            while True:
                ballast.write(b"\0" * 2**20)
                ballast.flush()
        except OSError:
            pass


def full_disk(driver):
    name = GROWS.pod_name(1)
    with step("a volume is full to the last byte: told, and what fills it"):
        fill(1)

        def says():
            pilot = GROWS.pilot(1)
            conditions = {entry["type"]: entry for entry in pilot["status"].get("conditions", [])}
            found = conditions.get("PreflightPassed", {})
            return found.get("reason") == "DiskFull" and [found["message"]] or json.dumps([conditions, pilot["status"].get("storage")])
        say(f"    {GROWS.wait('its Pilot says DiskFull', says, 300)[0]}")
        say(f"    {json.dumps(GROWS.pilot(1)['status']['storage'])}")
    with step("its database ends: it waits, and is not started again and again"):
        kubectl("exec", "-n", NS, name, "-c", "cassandra", "--", "sh", "-c", "kill -9 $(pidof java)", check=False)

        def waits():
            status = GROWS.pilot(1)["status"]
            return status.get("phase") == "Failed" and "process" not in status or json.dumps(status)
        GROWS.wait("its pilot starts nothing", waits, 300)
        restarts = GROWS.pilot(1)["status"].get("process", {}).get("restarts")
        seen = {GROWS.pilot(1)["status"]["lastHeartbeatTime"]}

        def reported():
            seen.add(GROWS.pilot(1)["status"]["lastHeartbeatTime"])
            return len(seen) > 3 or str(seen)
        GROWS.wait("three more reports of its pilot", reported)
        status = GROWS.pilot(1)["status"]
        claim("it still waits", status.get("phase") == "Failed" and "process" not in status, status)
        say(f"    {GROWS.told('Ready')} restarts {restarts}")
    with step(f"the claims grow to {SIZES[2]}: it goes on by itself"):
        begun = time.monotonic()
        grow(SIZES[2])
        GROWS.ready(nodes=2, deadline=900)
        say(f"    Ready after {time.monotonic() - begun:.0f} s; {file_system(1)} MiB and free; {driver.failed[-1:]}")


def job():
    with step("install"):
        install()
    kubectl("create", "namespace", NS)
    volumes(2)
    driver = Driver()
    with step(f"a Cassandra of two nodes on volumes of {SIZES[0]}, and {ROWS} rows with two copies"):
        GROWS.apply(GROWS.manifest(2, {"persistence": {"size": SIZES[0], "storageClass": CLASS}}))
        GROWS.ready(nodes=2, deadline=1500)
        GROWS.write(ROWS, copies=2)
    driver.start()
    with QuorumClient(GROWS.addresses(), ROWS) as client:
        volumes_grow(driver)
    say(f"    {client.figures()}")
    claim("no request failed at QUORUM after one retry", client.done > 20 and not client.failed, client.failed[:5])
    full_disk(driver)
    with step("every row is there"):
        missing = client.missing()
        claim(f"all {len(client.acknowledged)} rows that were written meanwhile are read at QUORUM", not missing, missing[:10])
        GROWS.has_rows(ROWS)
    driver.ends.set()
    kubectl("delete", "namespace", NS, timeout=1000)


if __name__ == "__main__":
    main(job)
