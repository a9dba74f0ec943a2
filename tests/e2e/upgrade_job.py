"""The upgrade job: an older Navigator is installed and runs a Cassandra; then this one is installed over it, and then the older one again.

The pilot changes, its database does not, and what the older server stored is there. Volumes get the uid of their cluster, which the older one
does not write. The older program is that of scripts/older.sh. Leaves this one installed.
"""
import json
import os
import shutil
import threading
from pathlib import Path

from bed import CTR, ROOT, RUN, away, claim, condition, get, kubectl, main, pids, run, say, step
from cluster import Cassandra
from navigator import install, is_installed, remove

NS = "upgraded"
# With TLS and logins, as new clusters are.
KEPT = Cassandra(NS, mode=None)
CLUSTER_UID = "navigator.jetstack.io/cluster-uid"
ROWS = 1_000
NAVIGATOR = ROOT / "bin/navigator"
OLDER = ROOT / ".cache/older/navigator"
# Times since which the cluster was Ready, each time somebody looked: one is borne beside the first, for a busy machine's probe may be late once.
READY_SINCE = set()


class Reader(threading.Thread):
    """Reads every row again and again; remembers each time that one was missing. A round that fails is tried once more over another connection,
    as an application does, for a busy machine may cut one off."""

    def __init__(self):
        super().__init__(daemon=True)
        self.session, self.rounds, self.again, self.wrong, self.ended = KEPT.client(), 0, 0, [], threading.Event()

    def run(self):
        while not self.ended.wait(0.5):
            last = self.round()
            if last is not None:
                self.again += 1
                last = self.round(anew=True)
            if last is not None:
                self.wrong.append(last)
            self.rounds += 1
        self.session.cluster.shutdown()

    def round(self, anew=False):
        """What was wrong with one round, or None."""
        try:
            if anew:
                self.session.cluster.shutdown()
                self.session = KEPT.client()
            found = self.session.read(ROWS)
            return None if found == ROWS else f"{found} of {ROWS} rows"
        except Exception as error:  # noqa: BLE001 - whatever an application would see
            return repr(error)

    def stop(self):
        self.ended.set()
        self.join(120)


def began(pid):
    """When a process began, as the kernel counts."""
    return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[19]


def older_manifest():
    """Of the older one's image, which the bed has from then on."""
    image = run(NAVIGATOR, "manifest", "--print-image").stdout.strip() + "-older"
    files, archive = RUN / "older", RUN / "older.tar"
    files.mkdir(exist_ok=True)
    shutil.copy2(OLDER, files / "navigator")
    run(ROOT / "tests/testbed/image.py", image, archive, '["/navigator"]', files, "65532:65532")
    run(*CTR, "images", "import", archive)
    return run(OLDER, "manifest", "--image", image).stdout


def install_older(manifest):
    """In place of what is installed, as if that had never been: store and all."""
    with away("Navigator is removed"):
        remove()
        kubectl("apply", "-f", "-", stdin=manifest)
        is_installed()


def volumes_have_the_uid():
    """For wait(): does each claim of the cluster name the cluster by its uid?"""
    found = [claim_["metadata"].get("annotations", {}).get(CLUSTER_UID) for claim_ in KEPT.get("pvc")]
    return (len(found) == 1 and found == [KEPT.uid()]) or str(found)


def go_back(manifest):
    """As docs/install.md says for the manifest."""
    with away("the server is replaced"):
        kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=manifest)
        is_installed()
        KEPT.ready()
    # The controller acts: a Service that is deleted is made again.
    seeds = ("service", "-n", NS, f"cass-{KEPT.name}-seeds")
    uid = get(*seeds)["metadata"]["uid"]
    kubectl("delete", *seeds)
    KEPT.wait("the Service again", lambda: (get(*seeds) or {"metadata": {"uid": uid}})["metadata"]["uid"] != uid or "it is gone")
    claim("the older controller has nothing against them", not KEPT.told("Stalled"), KEPT.told("Stalled"))


def stored():
    """What people and the controller wrote of ours, by kind and name."""
    things = KEPT.get("cassandraclusters,pilots")
    return {f"{thing['kind']}/{thing['metadata']['name']}": (thing["metadata"]["uid"], thing["spec"]) for thing in things}


def what_stays():
    """All that an upgrade must leave as it is: processes, container, pod, and that the cluster is Ready."""
    (one,) = pids("pilot", NS)
    (database,) = (Path("/proc") / str(one) / "task" / str(one) / "children").read_text().split()
    status = next(c for c in KEPT.pod()["status"]["containerStatuses"] if c["name"] == "cassandra")
    ready = next(c for c in KEPT.status()["conditions"] if c["type"] == "Ready")
    READY_SINCE.add(ready["lastTransitionTime"])
    return {
        "pilot": (one, began(one)), "database": (database, began(database)), "pod": KEPT.pod_uid(),
        "container": status["containerID"], "restarts": status["restartCount"],
        "process": pilot()["process"], "ready": ready["status"],
    }


def program():
    """Inode of the program that the pilot runs."""
    return os.stat(f"/proc/{pids('pilot', NS)[0]}/exe").st_ino


def pilot():
    return KEPT.pilot()["status"]


def pilots_are(status, reason):
    message = KEPT.tells("PilotsCurrent", status, reason)
    say(f"    {status}/{reason}: {message}")
    return message


def job():
    second = run(NAVIGATOR, "manifest", "--print-image").stdout.strip()
    with step("install the older one, and a Cassandra of one node"):
        older = older_manifest()
        install_older(older)
        kubectl("create", "namespace", NS)
        KEPT.apply()
        KEPT.ready()
        # The older one says Ready before logins are in force.
        KEPT.tells("UsersReady", "True")
        KEPT.write(ROWS)
        pilots_are("True", "PilotsCurrent")
        before, file, installed, objects = what_stays(), program(), pilot()["pilotProgram"], stored()
        init = KEPT.pod()["status"]["initContainerStatuses"][0]["state"]["terminated"]["message"]
        claim("the Pilot says what the init container installed", installed == init, (installed, init))
    reader = Reader()
    reader.start()
    with step("install this one over it, until its pilot runs"), away("the server is replaced"):
        install()
        KEPT.wait("another program", lambda: pilot()["pilotProgram"] != installed or installed)
        claim("every pilot is current", pilots_are("True", "PilotsCurrent").endswith(second))
    with step("nothing else has changed"):
        KEPT.wait("its volume has the uid of the cluster", volumes_have_the_uid)
        claim("what the older server stored is there as it was", len(objects) == 2 and stored() == objects, (objects, stored()))
        claim("the process runs another file", program() != file, file)
        pod = KEPT.pod()
        container = pod["spec"]["ephemeralContainers"]
        claim("one ephemeral container was added, of the other image", [c["image"] for c in container] == [second], container)
        ended = pod["status"]["ephemeralContainerStatuses"][0]["state"]["terminated"]
        claim("the Pilot says what that one installed", ended["message"] == pilot()["pilotProgram"], ended)
        after = what_stays()
        claim("pilot's pid, database's process, container, pod, restarts and Ready are as before", after == before, (before, after))
        claim("the Pilot's version and conditions are there", pilot().get("pilotVersion") and condition({"status": pilot()}, "Ready") == "True", pilot())
    with step("an image that no registry has"):
        KEPT.patch(pilotImage={"repository": "registry.invalid/navigator", "tag": "none"})
        pilots_are("False", "ImagePullFailed")
        after = what_stays()
        claim("nothing has changed, and the cluster is Ready", after == before, (before, after))
        KEPT.patch(pilotImage=None)
        pilots_are("True", "PilotsCurrent")
        container = KEPT.pod()["spec"]["ephemeralContainers"]
        claim("nothing was installed for it", len(container) == 2, container)
    with step("go back to the older one, and forth again"):
        go_back(older)
        with away("the server is replaced"):
            install()
            pilots_are("True", "PilotsCurrent")
        claim("database, pod and container are as before", [what_stays()[part] for part in ("database", "pod", "restarts")] ==
              [before[part] for part in ("database", "pod", "restarts")], (before, what_stays()))
    reader.stop()
    say(f"    {reader.rounds} times every row was read, {reader.again} of them over another connection; Ready since {sorted(READY_SINCE)}")
    claim(f"all {ROWS} rows were there each time", reader.rounds > 0 and not reader.wrong, (reader.rounds, reader.wrong[:5]))
    claim("at most one connection was lost, and the cluster was Ready again at most once", reader.again <= 1 and len(READY_SINCE) <= 2, (reader.again, READY_SINCE))
    with step("delete the pod; it returns with the other image by itself"):
        KEPT.replace_pod()
        made = KEPT.pod()["spec"]
        claim("its init container is of the other image", made["initContainers"][0]["image"] == second, made["initContainers"])
        claim("nothing was delivered", not made.get("ephemeralContainers"), made.get("ephemeralContainers"))
        pilots_are("True", "PilotsCurrent")
        KEPT.has_rows(ROWS)
    with step("the end"):
        # Kubernetes looks at a namespace with pods again only after half of their grace period, so the pods go first.
        KEPT.delete()
        KEPT.pods_are_gone(300)
        kubectl("delete", "namespace", NS, timeout=500)


if __name__ == "__main__":
    main(job)
