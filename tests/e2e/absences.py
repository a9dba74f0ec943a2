"""Which nodes of databases are away at each moment, by watches of their pods and Pilots."""
import http.client
import json
import threading
import time

from bed import condition, say
from raw import connection

PILOTS = "/apis/navigator.jetstack.io/v1beta1"


class Absences:
    """Follows the nodes of a namespace until it is stopped, and keeps each moment at which more nodes of a group were away than may be.

    A node is away while its pod is not there, ends, or was never Ready, and while its Pilot does not say that it serves. A pod that was Ready once is judged by
    its Pilot alone: kubelet learns of a restart in place, and of its end, some seconds later.
    """

    def __init__(self, namespace, groups, most=1):
        """`groups`: names of nodes by the name of their group."""
        self.groups, self.most = groups, most
        self.pods, self.pilots, self.ready = {}, {}, set()
        # Since when each node is away, each change with its time, and what was seen that may not be.
        self.since, self.history, self.violations, self.together = {}, [], [], {group: 0 for group in groups}
        # In how many groups a node was away at the same moment, at most.
        self.at_once, self.last = 0, {}
        self.begun, self.lock, self.ends = time.monotonic(), threading.Lock(), threading.Event()
        self.links, self.listed = {}, {}
        paths = {f"/api/v1/namespaces/{namespace}/pods": self.pods, f"{PILOTS}/namespaces/{namespace}/pilots": self.pilots}
        self.threads = [threading.Thread(target=self.follow, args=one, daemon=True) for one in paths.items()]

    def follow(self, path, known):
        """Lists and watches, and begins from the list when a watch ends."""
        while not self.ends.is_set():
            link = self.links[path] = connection(timeout=600)
            try:
                link.request("GET", path)
                listed = json.loads(link.getresponse().read())
                with self.lock:
                    known.clear()
                    known.update({thing["metadata"]["name"]: thing for thing in listed["items"]})
                    self.listed[path] = True
                    self.judge()
                link.request("GET", f"{path}?watch=true&resourceVersion={listed['metadata']['resourceVersion']}")
                answer = link.getresponse()
                while line := answer.readline():
                    event = json.loads(line)
                    if event["type"] not in ("ADDED", "MODIFIED", "DELETED"):
                        break
                    with self.lock:
                        name = event["object"]["metadata"]["name"]
                        if event["type"] == "DELETED":
                            known.pop(name, None)
                        else:
                            known[name] = event["object"]
                        self.judge()
            except (OSError, ValueError, KeyError, AttributeError, http.client.HTTPException):
                self.ends.wait(1)
            finally:
                link.close()

    def why(self, node):
        """Why a node is away, or None."""
        pod = self.pods.get(node)
        if not pod:
            return "no pod"
        if "deletionTimestamp" in pod["metadata"]:
            return "its pod ends"
        uid = pod["metadata"]["uid"]
        if condition(pod, "Ready") == "True":
            self.ready.add(uid)
        if uid not in self.ready:
            return f"its pod is {pod.get('status', {}).get('phase')}, and was never Ready"
        pilot = self.pilots.get(node)
        return None if condition(pilot, "Ready") == "True" else f"its Pilot says {(pilot or {}).get('status', {}).get('phase')}"

    def judge(self):
        if len(self.listed) < 2:
            return
        now, touched = time.monotonic(), 0
        for group, nodes in self.groups.items():
            away = {node: why for node in nodes if (why := self.why(node))}
            for node in nodes:
                was = self.since.get(node, (None, None))[1]
                if away.get(node) != was:
                    self.history.append(f"{now - self.begun:.1f} s {node}: {away.get(node) or 'serves'}")
                    self.since[node] = (now, away.get(node))
            touched += bool(away)
            self.together[group] = max(self.together[group], len(away))
            if len(away) > self.most and away.keys() != self.last.get(group):
                self.violations.append((now, group, away))
                say(f"    {len(away)} nodes of {group} are away: {away}")
            self.last[group] = set(away)
        self.at_once = max(self.at_once, touched)

    def away(self):
        """Nodes that are away now."""
        with self.lock:
            return {node: why for nodes in self.groups.values() for node in nodes if (why := self.why(node))}

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.ends.set()
        for link in list(self.links.values()):
            if link.sock:
                link.sock.close()
