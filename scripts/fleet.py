#!/usr/bin/env python3
"""fleet.py NAVIGATOR [CLUSTERS [NODES [SECONDS]]]: what the controller's caches cost with a fleet of clusters, and its heartbeats.

Starts `NAVIGATOR controller` beside a scripted API that has CLUSTERS clusters (1000) of NODES nodes (10): their objects are the golden ones of
Cassandra, pods as kubelet fills them in, Pilots as a pilot reports them. The controller waits for the lead, which another one holds, so what is
measured is watching: memory when the caches are filled, and for SECONDS (60) while each Pilot sends a heartbeat each 30 s. Prints one line of
Markdown. Memory that is private and from no file (RssAnon) does not depend on how the program was built; what is resident (VmRSS) does.
"""
import copy
import json
import os
import queue
import re
import subprocess
import sys
import tempfile
import threading
import time
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlparse

try:
    import yaml
except ImportError:
    sys.exit("please install PyYAML (Debian: apt-get install python3-yaml)")

ROOT = Path(__file__).resolve().parents[1]
GROUP = "navigator.jetstack.io/v1beta1"
HEARTBEAT = 30
# As `kubectl get --show-managed-fields` shows it of a Pilot: keys of each field, by who wrote it last.
MANAGED = [{"manager": manager, "operation": "Apply", "apiVersion": "v1", "time": "2026-11-26T00:00:00Z", "fieldsType": "FieldsV1",
            "fieldsV1": {f"f:{part}": {f"f:field-{number}": {} for number in range(12)} for part in ("metadata", "spec", "status")}}
           for manager in ("navigator-controller", "kubelet")]
DEFAULTED = {"terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"}


def now():
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


class Fleet:
    """The objects of all clusters, by the path of their list."""

    def __init__(self, clusters, nodes):
        self.revision = 1
        self.lists = {}
        self.watchers = {}
        self.pilots = []
        golden = list(yaml.safe_load_all((ROOT / "tests/golden/controller/cassandra.yaml").read_text()))
        text = json.dumps([one for one in golden if "scratch" not in one["metadata"]["name"]])
        for number in range(clusters):
            objects = json.loads(text.replace("shop", f"shop-{number:04}").replace("5d0c7a1e", self.uid()))
            for one in objects:
                self.add(one, number)
                if one["kind"] == "StatefulSet":
                    for ordinal in range(nodes):
                        self.node(one, ordinal, number)
                if one["kind"] == "Pilot":
                    for ordinal in range(nodes):
                        self.pilot(copy.deepcopy(one), ordinal, number)
            self.add(self.cluster(number, nodes), number)

    def uid(self):
        self.revision += 1
        return f"00000000-0000-4000-8000-{self.revision:012}"

    def add(self, one, number):
        kind = one["kind"]
        if kind == "Pilot" and "status" not in one:
            return
        if kind == "StatefulSet":
            one["status"] = {"observedGeneration": 1, "replicas": 10, "readyReplicas": 10, "currentRevision": "cass-a-1", "updateRevision": "cass-a-1"}
        meta = one["metadata"]
        meta.update(namespace=f"team-{number:04}", uid=self.uid(), resourceVersion=str(self.revision), generation=1,
                    creationTimestamp="2026-11-26T00:00:00Z", managedFields=MANAGED)
        self.lists.setdefault(kind, []).append(one)

    def cluster(self, number, nodes):
        condition = {"status": "True", "reason": "AsExpected", "message": "everything is as the spec asks for",
                     "lastTransitionTime": "2026-11-26T00:00:00Z", "observedGeneration": 1}
        types = ("Ready", "Available", "Reconciling", "Stalled", "Progressing", "PilotsCurrent", "Drainable")
        spec = {"version": "5.0.6", "image": {"repository": "docker.io/cassandra", "tag": "5.0.6"}, "cassandra": {"numTokens": 16},
                "nodePools": [{"name": "a", "replicas": nodes, "rack": "a", "datacenter": "eu", "persistence": {"size": "100Gi"},
                               "resources": {"limits": {"memory": "4Gi"}, "requests": {"cpu": "1", "memory": "4Gi"}}}]}
        return {"apiVersion": GROUP, "kind": "CassandraCluster", "metadata": {"name": f"shop-{number:04}"}, "spec": spec,
                "status": {"observedGeneration": 1, "phase": "Ready", "conditions": [{"type": type_, **condition} for type_ in types],
                           "nodePools": [{"name": "a", "replicas": nodes, "readyReplicas": nodes}], "readyReplicas": nodes}}

    def node(self, set_, ordinal, number):
        name, template = f"{set_['metadata']['name']}-{ordinal}", set_["spec"]["template"]
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": copy.deepcopy(template["metadata"]), "spec": copy.deepcopy(template["spec"])}
        pod["metadata"]["name"] = name
        pod["metadata"]["labels"] |= {"controller-revision-hash": "cass-a-1", "statefulset.kubernetes.io/pod-name": name,
                                      "apps.kubernetes.io/pod-index": str(ordinal)}
        spec = pod["spec"]
        token = {"name": "kube-api-access-x7k2p", "projected": {"defaultMode": 420, "sources": [
            {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}}]}}
        spec["volumes"] += [{"name": "cassandra-data", "persistentVolumeClaim": {"claimName": f"cassandra-data-{name}"}}, token]
        statuses = []
        for container in spec["containers"] + spec["initContainers"]:
            container |= DEFAULTED
            container.setdefault("volumeMounts", []).append(
                {"name": token["name"], "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": True})
            statuses.append({"name": container["name"], "ready": True, "restartCount": 0, "image": container["image"], "started": True,
                             "imageID": f"{container['image']}@sha256:{'0f' * 32}", "containerID": f"containerd://{'0f' * 32}", "lastState": {},
                             "state": {"running": {"startedAt": "2026-11-26T00:00:00Z"}},
                             "volumeMounts": [{"name": mount["name"], "mountPath": mount["mountPath"]} for mount in container["volumeMounts"]]})
        spec |= {"nodeName": f"machine-{ordinal}", "schedulerName": "default-scheduler", "dnsPolicy": "ClusterFirst", "restartPolicy": "Always",
                 "hostname": name, "subdomain": set_["spec"]["serviceName"], "enableServiceLinks": True, "preemptionPolicy": "PreemptLowerPriority"}
        spec["tolerations"] = spec.get("tolerations", []) + [
            {"key": f"node.kubernetes.io/{what}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
            for what in ("not-ready", "unreachable")]
        types = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
        pod["status"] = {"phase": "Running", "hostIP": "10.0.0.1", "podIP": "10.1.0.1", "podIPs": [{"ip": "10.1.0.1"}], "qosClass": "Burstable",
                         "startTime": "2026-11-26T00:00:00Z", "containerStatuses": statuses[:1], "initContainerStatuses": statuses[1:],
                         "conditions": [{"type": type_, "status": "True", "lastTransitionTime": "2026-11-26T00:00:00Z"} for type_ in types]}
        self.add(pod, number)
        claim = copy.deepcopy(set_["spec"]["volumeClaimTemplates"][0])
        claim |= {"apiVersion": "v1", "kind": "PersistentVolumeClaim"}
        claim["metadata"] = {"name": f"cassandra-data-{name}", "labels": dict(set_["metadata"]["labels"]), "annotations": {
            "pv.kubernetes.io/bind-completed": "yes", "volume.kubernetes.io/storage-provisioner": "csi.example.com"}}
        claim["spec"]["volumeName"] = f"pvc-{name}"
        claim["status"] = {"phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "100Gi"}}
        self.add(claim, number)

    def pilot(self, pilot, ordinal, number):
        pilot["metadata"]["name"] = pilot["metadata"]["name"].rsplit("-", 1)[0] + f"-{ordinal}"
        types = ("Ready", "Started", "PreflightPassed", "ConfigApplied", "Stopped", "Decommissioned", "Writable", "VolumeHoldsData", "ProgramCurrent")
        pilot["status"] = {
            "phase": "Running", "observedGeneration": 1, "version": "5.0.6", "pilotVersion": "0.2.0", "pilotProgram": "c0ffee", "health": "Green",
            "configHash": pilot["spec"]["configHash"], "lastHeartbeatTime": now(),
            "identity": {"clusterID": self.uid(), "nodeID": self.uid(), "ringID": self.uid(), "since": "2026-11-26T00:00:00Z"},
            "instance": {"runtime": "Kubernetes", "node": f"machine-{ordinal}", "uid": self.uid()},
            "endpoints": [{"name": name, "host": "10.1.0.1", "port": port} for name, port in (("transport", 7000), ("client", 9042))],
            "process": {"pid": 17, "startTime": "2026-11-26T00:00:00Z", "restarts": 0},
            "storage": {"path": "/var/lib/cassandra", "capacityBytes": 107374182400, "usedBytes": 53687091200},
            "cassandra": {"version": "5.0.6", "operationMode": "NORMAL", "joined": True, "tokens": 16, "loadBytes": 53687091200, "unreachable": []},
            "conditions": [{"type": type_, "status": "True", "reason": "AsExpected", "message": "Cassandra serves clients, as it should",
                            "lastTransitionTime": "2026-11-26T00:00:00Z", "observedGeneration": 1} for type_ in types]}
        self.add(pilot, number)
        self.pilots.append(pilot)

    def beat(self, seconds):
        """Sends heartbeats as evenly as the pilots of a fleet do; returns how many."""
        sent, start = 0, time.monotonic()
        rate = len(self.pilots) / HEARTBEAT
        while (elapsed := time.monotonic() - start) < seconds:
            while sent < elapsed * rate:
                pilot = self.pilots[sent % len(self.pilots)]
                self.revision += 1
                pilot["metadata"]["resourceVersion"] = str(self.revision)
                pilot["status"]["lastHeartbeatTime"] = now()
                pilot["status"]["storage"]["usedBytes"] += 4096
                event = json.dumps({"type": "MODIFIED", "object": pilot})
                for watcher in self.watchers.get("Pilot", []):
                    watcher.put(event)
                sent += 1
            time.sleep(0.02)
        return sent


KINDS = {"pods": "Pod", "persistentvolumeclaims": "PersistentVolumeClaim", "services": "Service", "serviceaccounts": "ServiceAccount",
         "statefulsets": "StatefulSet", "poddisruptionbudgets": "PodDisruptionBudget", "roles": "Role", "rolebindings": "RoleBinding",
         "pilots": "Pilot", "cassandraclusters": "CassandraCluster", "elasticsearchclusters": "ElasticsearchCluster", "leaderleases": "LeaderLease"}


def handler(fleet):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def reply(self, body, code=200):
            body = json.dumps(body).encode()
            self.send_response(code)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self):
            url = urlparse(self.path)
            query, plural = parse_qs(url.query), url.path.rsplit("/", 1)[1]
            if url.path == f"/apis/{GROUP}":
                served = [{"name": plural, "singularName": "", "namespaced": True, "kind": kind, "verbs": ["get", "list", "watch"]}
                          for plural, kind in KINDS.items()]
                return self.reply({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": GROUP, "resources": served})
            if kind := KINDS.get(plural):
                return self.watch(kind) if query.get("watch") else self.list(kind, query)
            if url.path.startswith("/apis/coordination.k8s.io/"):
                return self.reply({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": plural, "resourceVersion": "1"}, "spec": {
                    "holderIdentity": "another", "leaseDurationSeconds": 15, "renewTime": now().replace("Z", ".000000Z"),
                    "acquireTime": "2026-11-26T00:00:00.000000Z"}})
            if "/configmaps/" in url.path:
                return self.reply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": plural, "resourceVersion": "1"},
                                   "data": {"id": "0b9b6f9c", "store-id": "0b9b6f9c", "storeID": "0b9b6f9c"}})
            return self.reply({"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404, "message": self.path}, 404)

        def list(self, kind, query):
            found = fleet.lists.get(kind, [])
            start, limit = int(query.get("continue", ["0"])[0]), int(query.get("limit", [len(found) + 1])[0])
            end = min(start + limit, len(found))
            meta = {"resourceVersion": str(fleet.revision)}
            if end < len(found):
                meta["continue"] = str(end)
            self.reply({"apiVersion": GROUP, "kind": f"{kind}List", "metadata": meta, "items": found[start:end]})

        def watch(self, kind):
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            events = queue.SimpleQueue()
            fleet.watchers.setdefault(kind, []).append(events)
            try:
                while True:
                    line = events.get().encode() + b"\n"
                    self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
            except OSError:
                fleet.watchers[kind].remove(events)

        def do_POST(self):
            self.rfile.read(int(self.headers.get("content-length", 0)))
            self.reply({"kind": "Status", "status": "Failure", "reason": "Forbidden", "code": 403, "message": "scripted"}, 403)

    return Handler


def memory(pid):
    status = Path(f"/proc/{pid}/status").read_text()
    return [int(re.search(rf"{what}:\s+(\d+)", status)[1]) / 1024 for what in ("VmRSS", "RssAnon", "VmHWM")]


def spent(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main():
    navigator, clusters, nodes, seconds = (sys.argv[1:] + [None, None, None])[:4]
    clusters, nodes, seconds = int(clusters or 1000), int(nodes or 10), int(seconds or 60)
    fleet = Fleet(clusters, nodes)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(fleet))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as place:
        kubeconfig = Path(place) / "kubeconfig"
        kubeconfig.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "t",
            "clusters": [{"name": "t", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
            "users": [{"name": "t", "user": {}}], "contexts": [{"name": "t", "context": {"cluster": "t", "user": "t"}}]}))
        log = (Path(place) / "log").open("w+")
        settings = {"MIMALLOC_GENERIC_COLLECT": "50", "MIMALLOC_MINIMAL_PURGE_SIZE": "16", "MIMALLOC_PAGE_FULL_RETAIN": "0",
                    "MIMALLOC_PAGE_RECLAIM_ON_FREE": "1", "MIMALLOC_PURGE_DELAY": "5"}
        command = [navigator, "controller", f"--kubeconfig={kubeconfig}", "--pilot-image=quay.io/jetstack/navigator:v0.2.0",
                   "--admin-address=127.0.0.1:0"]
        controller = subprocess.Popen(command, env=settings, stdout=log, stderr=subprocess.STDOUT)
        try:
            deadline = time.monotonic() + 300
            while "Caches are filled" not in Path(log.name).read_text():
                if controller.poll() is not None or time.monotonic() > deadline:
                    sys.exit(Path(log.name).read_text())
                time.sleep(0.2)
            filling = spent(controller.pid)
            time.sleep(10)
            filled, before = memory(controller.pid), spent(controller.pid)
            beats = fleet.beat(seconds)
            used, after = spent(controller.pid) - before, memory(controller.pid)
        finally:
            controller.kill()
            controller.wait()
    print("| clusters, nodes each | filled: private, resident, most MiB | filling, s of a processor | after heartbeats: private MiB "
          "| heartbeats a second | % of a core |")
    print(f"| {clusters}, {nodes} | {filled[1]:.1f}, {filled[0]:.1f}, {filled[2]:.1f} | {filling:.1f} | {after[1]:.1f} "
          f"| {beats / seconds:.0f} | {100 * used / seconds:.2f} |")


if __name__ == "__main__":
    main()
