"""A cluster of a database as a job uses one: made, waited for, changed, read back, deleted.

Owns the names of what a cluster consists of and how each thing is asked for. What is claimed of it is the job's.
"""
import base64
import contextlib
import json
import time
from pathlib import Path

from bed import KUBECTL, ROOT, Failed, claim, condition_is, get, kubectl, pids, run, say, wait
from cql import Session
from es import INDEX, Node
from raw import request


class Cluster:
    """One cluster, whether it is there or not, in a namespace that the job makes."""

    kind = plural = prefix = sample = volume = None
    # Seconds until it is Ready, where the job does not say otherwise.
    patience = 600

    def __init__(self, namespace, name="small", mode="Open"):
        """`mode`: what its manifests say of security: `Open`, since most jobs have plain clients, or nothing (None), as the samples do."""
        self.namespace, self.name, self.mode = namespace, name, mode
        self.set = f"{self.prefix}-{name}-a"
        # As arguments of kubectl.
        self.object = (self.kind, "-n", namespace, name)

    # Written by a user.

    def apply(self, manifest=None, *flags, check=True):
        """Applies a manifest, or the sample, unedited unless it is to be open; returns all that kubectl said."""
        if manifest is None and self.mode:
            manifest = self.manifest()
        if manifest is None:
            source, stdin = ("-n", self.namespace, "-f", self.sample), None
        else:
            source, stdin = ("-f", "-"), json.dumps(manifest)
        done = run(*KUBECTL, "apply", *flags, *source, stdin=stdin, check=check)
        return done.stdout + done.stderr

    def manifest(self, replicas=None, pool=None, **spec):
        """The sample under this cluster's name, with another size, pool and spec where they are said."""
        thing = json.loads(kubectl("create", "--dry-run=client", "-o", "json", "-f", self.sample))
        thing["metadata"] = {"name": self.name, "namespace": self.namespace}
        thing["spec"]["nodePools"][0] |= {**({} if replicas is None else {"replicas": replicas}), **(pool or {})}
        thing["spec"] |= {**({"security": {"mode": self.mode}} if self.mode else {}), **spec}
        return thing

    def pools(self, names, replicas=1, **pool):
        """The sample with these pools of equal nodes."""
        thing = self.manifest(replicas, pool)
        one = thing["spec"]["nodePools"][0]
        thing["spec"]["nodePools"] = [{**one, "name": name} for name in names]
        return thing

    def patch(self, **spec):
        """Merges into the spec."""
        kubectl("patch", *self.object, "--type", "merge", "-p", json.dumps({"spec": spec}))

    def replace(self, path, value):
        """Replaces one value of the object."""
        kubectl("patch", *self.object, "--type", "json", "-p", json.dumps([{"op": "replace", "path": path, "value": value}]))

    def scale(self, replicas):
        self.replace("/spec/nodePools/0/replicas", replicas)

    def delete(self, *flags, timeout=400):
        kubectl("delete", *self.object, *flags, timeout=timeout)

    # What is there.

    def get(self, kind, name=None):
        """Objects of a kind in the namespace, or the one of this name; None when that is not there."""
        return get(kind, "-n", self.namespace, *([name] if name else []))

    def names(self, kind):
        return sorted(thing["metadata"]["name"] for thing in self.get(kind))

    def uids(self, kind):
        return sorted(thing["metadata"]["uid"] for thing in self.get(kind))

    def uid(self):
        return get(*self.object)["metadata"]["uid"]

    def spec(self):
        return get(*self.object)["spec"]

    def credentials(self):
        """What the administrator connects with: the CAs to trust, and name and password. Two times None for an open cluster, which has no such
        Secret. Asks Kubernetes alone: Navigator may be away."""
        secret = None if self.mode == "Open" else self.get("secret", f"{self.prefix}-{self.name}-admin")
        if not secret:
            return None, None
        values = {key: base64.b64decode(value).decode() for key, value in secret["data"].items()}
        return values["ca.crt"], (values["username"], values["password"])

    def status(self):
        """What the controller wrote; empty before it did."""
        return (get(*self.object) or {}).get("status", {})

    def told(self, kind):
        """Status, reason and message of a condition, or None."""
        for entry in self.status().get("conditions", []):
            if entry["type"] == kind:
                return entry["status"], entry.get("reason"), entry.get("message")
        return None

    def pod_name(self, ordinal=0):
        """Of a node of the first pool; its Pilot has the same."""
        return f"{self.set}-{ordinal}"

    def node(self, pool, ordinal=0):
        """The name of a node of any pool: of its pod and its Pilot."""
        return f"{self.prefix}-{self.name}-{pool}-{ordinal}"

    def claim_name(self, ordinal=0):
        """Of the volume of such a node."""
        return f"{self.volume}-{self.pod_name(ordinal)}"

    def pod(self, ordinal=0):
        return self.get("pod", self.pod_name(ordinal))

    def pods(self):
        return self.get("pods")

    def pod_uid(self, ordinal=0):
        return self.pod(ordinal)["metadata"]["uid"]

    def address(self, ordinal=0):
        return self.pod(ordinal)["status"]["podIP"]

    def addresses(self, nodes=None):
        """Asks, once a second, for the addresses of the pods that do not end, of these nodes or of all; a busy server is no outage of the
        database, so then those of before."""
        known, asked = [], [0.0]

        def ask():
            if time.monotonic() - asked[0] > 1:
                with contextlib.suppress(Exception):
                    # (a kubectl each second is a tenth of a processor)
                    pods = request("GET", f"/api/v1/namespaces/{self.namespace}/pods")[2]["items"]
                    known[:] = [pod["status"]["podIP"] for pod in pods
                                if pod["status"].get("podIP") and "deletionTimestamp" not in pod["metadata"]
                                and (nodes is None or pod["metadata"]["name"] in nodes)]
                asked[0] = time.monotonic()
            return list(known)
        return ask

    def pilot(self, ordinal=0):
        return self.get("pilot", self.pod_name(ordinal))

    def pilots(self):
        """By name."""
        return {pilot["metadata"]["name"]: pilot for pilot in self.get("pilots")}

    def processes(self):
        """When the database of each node was started, by the node's name; None where none runs."""
        return {name: pilot["status"].get("process", {}).get("startTime") for name, pilot in self.pilots().items()}

    def other_processes(self, before, deadline=900):
        """Waits until the database of each node has been started again; returns when."""
        def all_new():
            now = self.processes()
            return all(now.get(name) not in (None, begun) for name, begun in before.items()) and [now] or str(now)
        return self.wait("other processes", all_new, deadline)[0]

    def events(self, reason=None):
        """Those of the namespace, for a reason or all."""
        return [event for event in self.get("events.events.k8s.io") if reason in (None, event["reason"])]

    def leftovers(self):
        """What of a cluster is there that must go with it. Its claims may stay."""
        kinds = f"statefulset,pod,service,serviceaccount,role,rolebinding,pdb,pilots,{self.plural}"
        return [f"{thing['kind']}/{thing['metadata']['name']}" for thing in self.get(kinds) if thing["metadata"]["name"] != "default"]

    # What is waited for.

    def wait(self, what, condition, deadline=300, every=1.0):
        """As wait() of the bed; when it gives up, the error tells how the cluster stands."""
        try:
            return wait(what, condition, deadline, every)
        except Failed as error:
            raise Failed(f"{error}\n{self.summary()}") from error

    def tells(self, kind, status, reason=None, deadline=300):
        """Waits for a condition of the cluster, with a reason where one is named; returns its message."""
        def check():
            seen = self.told(kind)
            return [seen] if seen and seen[0] == status and reason in (None, seen[1]) else f"{kind} {seen}"
        wanted = f"{self.name} {kind}={status}" + (f"/{reason}" if reason else "")
        return self.wait(wanted, check, deadline)[0][2]

    def serves(self, nodes, deadline=None):
        """Waits until exactly this many nodes are ready, whatever else the cluster waits for."""
        def check():
            status = self.status()
            return status.get("readyReplicas") == nodes or json.dumps(status)
        self.wait(f"{nodes}/{nodes} nodes", check, deadline or self.patience)

    def ready(self, nodes=None, deadline=None):
        """Waits until the cluster is Ready, and first until it has exactly this many ready nodes, where that is said."""
        if nodes is not None:
            self.serves(nodes, deadline)
            deadline = None
        self.tells("Ready", "True", deadline=deadline or self.patience)

    def replace_pod(self, ordinal=0):
        """Deletes a pod and waits until another one of its name is Ready, and the cluster with it."""
        name, uid = self.pod_name(ordinal), self.pod_uid(ordinal)
        kubectl("delete", "pod", "-n", self.namespace, name, timeout=400)
        self.wait("another pod", lambda: self.pod_uid(ordinal) != uid or uid)
        self.wait("it is Ready", condition_is("Ready", "True", "pod", "-n", self.namespace, name), self.patience)
        self.ready()

    def says(self, word, deadline=300):
        """Waits until the status has these words; returns the condition or the block that has them, and says after how long."""
        begun = time.monotonic()

        def check():
            status = self.status()
            lines = [shown(entry) for entry in status.get("conditions", [])]
            lines += [f"{entry.get('predicate')}: {entry.get('message')}; {entry.get('hint')}" for entry in status.get("operation", {}).get("blockedBy", [])]
            return [line for line in lines if word in line] or "; ".join(lines)
        found = self.wait(f"the status to say {word}", check, deadline)
        say(f"    after {time.monotonic() - begun:.0f} s: {found[0]}")
        return found[0]

    def lose(self, node):
        """The machine of a node goes with its disk; returns the uid of its claim. The bed has one machine: it is the folder of its volume that is
        gone, and its pod that ends without a word."""
        held = self.get("pvc", f"{self.volume}-{node}")
        place = Path(get("pv", held["spec"]["volumeName"])["spec"]["local"]["path"])
        place.rename(place.with_name(f"{place.name}-lost"))
        kubectl("delete", "pod", "-n", self.namespace, node, "--grace-period=0", "--force")
        return held["metadata"]["uid"]

    def is_looked_at_again(self):
        """Waits until the controller has gone through the cluster since now: it puts back what is taken off a StatefulSet of its."""
        held = ("statefulset", "-n", self.namespace, self.get("statefulsets")[0]["metadata"]["name"])
        label = "app.kubernetes.io/managed-by"
        kubectl("label", *held, f"{label}-")
        self.wait("the label to be put back", lambda: label in (labels := get(*held)["metadata"]["labels"]) or str(labels))

    def pods_are_gone(self, deadline):
        self.wait("no pod", lambda: self.pods() == [] or str(self.names("pods")), deadline)

    def is_gone(self, deadline):
        self.wait("nothing left", lambda: (left := self.leftovers()) == [] or str(left), deadline)

    def summary(self):
        """How the cluster stands, in a few lines, for whoever reads of a failure."""
        try:
            status = self.status()
            lines = [f"{self.kind} {self.namespace}/{self.name}, nodes ready: {status.get('readyReplicas')}"]
            lines += [shown(entry) for entry in status.get("conditions", [])]
            if status.get("operation"):
                lines.append(f"operation {json.dumps(status['operation'])}")
            for kind in ("pods", "pilots"):
                for thing in self.get(kind):
                    seen = thing.get("status", {})
                    lines.append(f"{kind[:-1]} {thing['metadata']['name']} {seen.get('phase')}")
                    lines += ["  " + shown(entry) for entry in seen.get("conditions", []) if entry["status"] != "True"]
            told = sorted(self.events(), key=lambda event: event["metadata"]["creationTimestamp"])[-8:]
            lines += [f"event {event['regarding']['name']} {event['reason']}: {event.get('note')}" for event in told]
        except Exception as error:  # noqa: BLE001 - it must not hide the failure that it explains
            return f"(how the cluster stands cannot be told: {type(error).__name__}: {error})"
        return "\n".join(f"    {line[:400]}" for line in lines)


def shown(entry):
    """A condition on one line."""
    return f"{entry['type']}={entry['status']}/{entry.get('reason')}: {entry.get('message')}"


class Cassandra(Cluster):
    kind, plural, prefix, volume = "cassandracluster", "cassandraclusters", "cass", "cassandra-data"
    sample = ROOT / "deploy/samples/cassandra-small.yaml"

    def owned(self):
        """What Kubernetes holds of it, by uid."""
        kinds = ("statefulsets", "services", "pods", "pvc", "serviceaccounts", "roles", "rolebindings", "poddisruptionbudgets")
        return {kind: self.uids(kind) for kind in kinds}

    def running(self):
        """The pilot of the only node and its database, and how often the container was started."""
        (pilot,) = pids("pilot", self.namespace)
        (database,) = (Path("/proc") / str(pilot) / "task" / str(pilot) / "children").read_text().split()
        status = next(c for c in self.pod()["status"]["containerStatuses"] if c["name"] == "cassandra")
        return pilot, int(database), status["restartCount"]

    def runs_on(self, before, until=0):
        """Of what was owned, nothing is deleted before this time; it is looked at twice in any case."""
        looks = 0
        while looks < 2 or time.monotonic() < until:
            now = self.owned()
            if lost := {kind: sorted(set(uids) - set(now[kind])) for kind, uids in before.items() if set(uids) - set(now[kind])}:
                raise Failed(f"of the cluster's objects, these are gone: {lost}")
            looks += 1
            time.sleep(max(0, min(2, until - time.monotonic())))
        say(f"    ok: nothing was deleted, at {looks} looks")

    def client(self, ordinal=0):
        """A session with one node and no other, to be used with `with`."""
        return Session(self.address(ordinal), *self.credentials())

    def write(self, rows, first=0, copies=1):
        """Returns when each row up to this number was acknowledged. `copies`: as a number, or by datacenter."""
        with self.client() as session:
            session.write(rows, first, copies)

    def has_rows(self, rows, through=0, said="are there"):
        """Claims that each row is read at ONE through this node."""
        with self.client(through) as session:
            found = session.read(rows)
        claim(f"all {rows} rows {said}", found == rows, found)


class Elasticsearch(Cluster):
    kind, plural, prefix, volume = "elasticsearchcluster", "elasticsearchclusters", "es", "elasticsearch-data"
    sample = ROOT / "deploy/samples/elasticsearch-small.yaml"

    def client(self, ordinal=0):
        """HTTP to one node and no other."""
        return self.reach(self.address(ordinal))

    def reach(self, address):
        """HTTP to an address of a node or a Service."""
        return Node(address, *self.credentials())

    def ask(self, method, path, body=None):
        """Status and body of the first node's answer."""
        return self.client().ask(method, path, body)

    def ignore_disk(self):
        """The bed's volumes lie on the machine's one disk, however full that is: nothing would move on a full one."""
        self.ask("PUT", "/_cluster/settings", {"persistent": {"cluster.routing.allocation.disk.threshold_enabled": False}})

    def fill(self, documents, shards):
        """An index whose shards have no second copy, with so many documents."""
        node = self.client()
        made = node.make_index(shards)
        claim("the index is made", made[0] == 200, made)
        done = set()
        for first in range(0, documents, 500):
            done |= node.write(first, min(500, documents - first))
        claim(f"{documents} documents are acknowledged", len(done) == documents, len(done))

    def has_documents(self, numbers, what="documents"):
        """Claims that each of them is there."""
        missing = set(numbers) - self.client().read(numbers)
        claim(f"all {len(numbers)} {what} are there", not missing, f"{len(missing)} are missing: {sorted(missing)[:10]}")

    def shards(self):
        """Where each shard of the index is."""
        self.ask("POST", f"/{INDEX}/_refresh")
        return self.ask("GET", f"/_cat/shards/{INDEX}?format=json&h=shard,prirep,state,docs,node")[1]
