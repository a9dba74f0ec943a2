"""What the controller writes, by the audit trails: how much for one edited node and at rest; and that of two controllers one alone writes, when the
leader is killed and when it is stopped for a while.

Not part of CI: `make e2e-leader`.
"""
import os
import signal
import threading
import time

import audit
import idle
from bed import away, claim, get, kubectl, main, pids, say, step, wait
from cluster import Cassandra
from navigator import install, scale
from raw import Watch

NS = "written"
ONE = Cassandra(NS)
# Writes of the controller for one node that is edited in its pod, and for one that gets another pod, beside one for each 15 seconds that it
# takes, of what changes in words; at most. Seconds until the other one acts: 18 at most were seen; a machine that is busy with more than this
# job may give it its turn late.
WRITES, WITH_POD, SECONDS = 11, 16, 60
CONTROLLER = ("deployment/navigator-controller", "-n", "navigator")
LEASE = ("lease", "-n", "navigator", "navigator-controller")


def show(events):
    for line in audit.table(events):
        say(f"    {line}")


def on_both_trails(events):
    """Each write of our kinds is on the trail of our server too, with the account that wrote it."""
    known = audit.ours()
    mine = [event for event in events if audit.is_of_navigator(event)]
    other = [event["auditID"] for event in mine if known.get(event["auditID"]) != event["user"]["username"]]
    claim(f"all {len(mine)} writes of our kinds are on the trail of our server, with the account that wrote", mine and not other, other[:5])


def leaves(thing, path=""):
    """Values of a status by their paths; conditions by their types, without times."""
    if isinstance(thing, list):
        thing = {str(entry.get("type") or entry.get("predicate") or entry.get("name") or at) if isinstance(entry, dict) else str(at): entry
                 for at, entry in enumerate(thing)}
    if not isinstance(thing, dict):
        return {path: thing}
    return {key: value for name, entry in thing.items() for key, value in leaves(entry, f"{path}.{name}").items()
            if name not in ("lastTransitionTime", "observedGeneration", "since")}


def changes(events):
    """What each write of the status changed, a line each."""
    lines, before = [], None
    for event in events:
        now = leaves(event["object"].get("status", {}))
        if before is not None and now != before:
            changed = [f"{path}={now.get(path)}" for path in sorted(now.keys() | before.keys()) if now.get(path) != before.get(path)]
            lines.append(f"{len(changed)}: " + "; ".join(changed))
        before = now
    return lines


def at_rest():
    """A minute without an edit: nothing is written but the heartbeats of the pilot."""
    only_heartbeats(audit.mark(), time.monotonic())


def only_heartbeats(since, begun):
    time.sleep(60)
    wait("a heartbeat", lambda: heartbeats(audit.writes(since)) or "no heartbeat")
    found, took = audit.writes(since), time.monotonic() - begun
    show(found)
    beats = heartbeats(found)
    claim(f"nothing is written in {took:.0f} s but heartbeats, at most one in ten seconds", len(found) == len(beats) <= took / 10, audit.table(found))


def heartbeats(found):
    return [event for event in found if (audit.account(event), audit.resource(event)) == ("pilot", "pilots/status")]


def begun_anew():
    """Another process of the controller finds all as it should be."""
    since, begun = audit.mark(), time.monotonic()
    kubectl("rollout", "restart", *CONTROLLER)
    kubectl("rollout", "status", *CONTROLLER, "--timeout=300s", timeout=330)
    wait("a leader", leads)
    only_heartbeats(since, begun)


def started():
    """When the database of the node was started."""
    return ((ONE.pilot() or {}).get("status", {}).get("process") or {}).get("startTime")


def edited(what, change, most, keeps_pod):
    """One node is edited, and serves again with another process, in its pod or in another one."""
    with step(f"what is written for one edited node: {what}"):
        uid, process, since, begun = ONE.pod_uid(), started(), audit.mark(), time.monotonic()
        watch = Watch(f"/apis/navigator.jetstack.io/v1beta1/namespaces/{NS}/cassandraclusters?watch=true")
        change()
        ONE.wait("another process", lambda: started() not in (None, process) or str(process))
        ONE.ready()
        claim(f"the pod is {'the same' if keeps_pod else 'another one'}", (ONE.pod_uid() == uid) == keeps_pod, uid)
        took = time.monotonic() - begun
        most += int(took // 15)
        say(f"    Ready after {took:.0f} s")
        # What is said late is counted as well.
        time.sleep(20)
        watch.stop()
        found = audit.writes(since)
        show(found)
        on_both_trails(found)
        wrote = [event for event in found if audit.account(event) == "controller"]
        told = [event for event in wrote if event["objectRef"]["resource"] == "events"]
        say(f"    the controller wrote {len(wrote)} times, {len(told)} of them events; what its writes of the status changed:")
        for line in changes(watch.events):
            say(f"      {line[:900]}")
        claim(f"the controller wrote at most {most} times", len(wrote) <= most, audit.table(wrote))


class Hand(threading.Thread):
    """A person's hand that takes a label off a StatefulSet as soon as the controller has put it back: it always has something to write."""

    def __init__(self, cluster):
        super().__init__(daemon=True)
        self.set = ("statefulset", "-n", cluster.namespace, cluster.set)
        self.ends = threading.Event()

    def run(self):
        while not self.ends.is_set():
            kubectl("label", *self.set, "app.kubernetes.io/managed-by-", check=False)
            self.ends.wait(0.5)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.ends.set()
        self.join(timeout=60)


def leader():
    """Pod and process of the controller that leads."""
    holder = get(*LEASE)["spec"].get("holderIdentity") or ""
    for pod in get("pods", "-n", "navigator", "-l", "app.kubernetes.io/component=controller"):
        name = pod["metadata"]["name"]
        if holder.startswith(name) and (found := pids("controller", pod=name)):
            return name, found[0]
    raise KeyError(f"no process of {holder!r}")


def leads():
    try:
        return leader()
    except KeyError as error:
        return str(error)


def taken_over(what, lose, after):
    """The leader is lost while it writes: the other one writes in time, and the former one nothing after that."""
    with step(f"the leader {what}: the other acts within {SECONDS} s"):
        name, pid = wait("a leader", leads)
        since = audit.mark()

        def written(reigns=1):
            found = {audit.reign(event) for event in audit.writes(since)} - {None}
            return len(found) >= reigns or str(found)
        wait("a write of the leader", written, every=0.2)
        lost = time.time()
        with away("the leader is lost"):
            lose(pid)
            wait("a write of another reign", lambda: written(2), every=0.2)
            after(pid)
        claim("another controller leads", leader()[0] != name, name)
        events = [event for event in audit.writes(since) if audit.reign(event) is not None]
        former, latter = sorted({audit.reign(event) for event in events})
        first = min(audit.when(event) for event in events if audit.reign(event) == latter)
        last = max(audit.when(event) for event in events if audit.reign(event) == former)
        numbers = [sum(audit.reign(event) == one for event in events) for one in (former, latter)]
        say(f"    reign {former}: {numbers[0]} writes, the last {last - lost:+.1f} s; reign {latter}: {numbers[1]}, the first {first - lost:+.1f} s")
        claim(f"it acted within {SECONDS} s", first - lost <= SECONDS, first - lost)
        claim("the former leader wrote nothing after that", last < first and numbers[1] > 1, (last, first, numbers))


def resumed(pid):
    """Stopped for long enough to be deposed, and shorter than its probe takes to end it."""
    time.sleep(5)
    os.kill(pid, signal.SIGCONT)
    time.sleep(20)


def job():
    with step("install"):
        install()
    kubectl("create", "namespace", NS)
    with step("a Cassandra of one node"):
        ONE.apply()
        ONE.ready()
    with step("what is written at rest"):
        time.sleep(30)
        at_rest()
    with step("what a controller that begins writes of a cluster at rest"):
        begun_anew()
    edited("a setting", lambda: ONE.patch(config={"hinted_handoff_enabled": True}), WRITES, True)
    edited("its pod", lambda: ONE.replace("/spec/nodePools/0/resources/requests/cpu", "210m"), WITH_POD, False)
    ONE.delete()
    with step("a cluster that always has something to be put back, and two controllers"):
        busy = idle.made("busy", NS)
        scale("controller", 2)
        wait("two controllers", lambda: len(pids("controller")) == 2 or str(pids("controller")))
        kubectl("rollout", "status", *CONTROLLER, "--timeout=300s", timeout=330)
    with Hand(busy):
        for round_ in ("once", "again"):
            taken_over(f"is killed (-9), {round_}", lambda pid: os.kill(pid, signal.SIGKILL), lambda _: time.sleep(20))
        taken_over("is stopped (SIGSTOP) and goes on later", lambda pid: os.kill(pid, signal.SIGSTOP), resumed)
    kubectl("delete", "namespace", NS, timeout=500)


if __name__ == "__main__":
    main(job)
