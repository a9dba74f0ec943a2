"""Installed by kustomize, taken away, installed by Helm, upgraded, taken away, installed again, under a Cassandra that runs on.

Whoever takes Navigator away keeps its databases, and what it knew of them: the next install goes on with the same objects,
pods and processes. Then its store is exchanged (collector_job). The Cassandra is made before all that, and deleted after it, under kills
(kill_run). Leaves what Helm installed.
"""
import time

import collector_job
import kill_run
from bed import away, claim, get, kubectl, main, pids, restart, step, wait
from cluster import Cassandra
from navigator import CHART, MANIFEST, helm, install_by_kustomize, is_installed, remove

NS = "kept"
KEPT = Cassandra(NS)
ROWS = kill_run.ROWS
# The garbage collector looks every 30 s which kinds there are.
COLLECTED = 35


def known():
    """What the store knows of it."""
    return {f"{thing['kind']}/{thing['metadata']['name']}": thing["metadata"]["uid"] for thing in KEPT.get("cassandraclusters,pilots")}


def nothing_is_served():
    wait("no APIService", lambda: not get("apiservice", "-l", "app.kubernetes.io/part-of=navigator") or "still there", 300)
    wait("no process of ours", lambda: not pids("apiserver") + pids("controller") or "still there", 300)
    groups = kubectl("api-versions").split()
    claim("Kubernetes knows our group no more", not [group for group in groups if "navigator" in group], groups)


def uninstalled(before, running, seconds):
    """Without Navigator: what is kept is there, and the database runs on, for so long."""
    nothing_is_served()
    claim("the namespace and the store's claim are there",
          get("namespace", "navigator")["status"]["phase"] == "Active" and get("pvc", "-n", "navigator", "navigator-apiserver"))
    KEPT.runs_on(before, time.monotonic() + seconds)
    KEPT.has_rows(ROWS)
    claim("pilot and database are the same processes", KEPT.running() == running, (KEPT.running(), running))


def installed_again(before, objects, running):
    """The same objects, and nothing was done to the database."""
    KEPT.ready()
    claim("the store knows what it knew", known() == objects, (known(), objects))
    claim("everything is owned as before", KEPT.owned() == before, (KEPT.owned(), before))
    claim("pilot and database are the same processes", KEPT.running() == running, (KEPT.running(), running))
    KEPT.has_rows(ROWS)


def is_refused(*args):
    done = kubectl(*args, check=False)
    claim(f"kubectl {' '.join(map(str, args[:3]))} is refused, with what to do", done.returncode != 0
          and "navigator.jetstack.io/delete-store=true" in done.stderr, done.stdout + done.stderr)
    return done.stdout + done.stderr


def the_store_is_kept():
    is_refused("delete", "namespace", "navigator")
    is_refused("delete", "pvc", "-n", "navigator", "navigator-apiserver")
    is_refused("delete", "pvc", "-n", "navigator", "--all")
    claim("other claims and namespaces can be deleted", kubectl("delete", "namespace", "empty"))


def job():
    with step("install by kustomize"):
        remove()
        install_by_kustomize()
        kubectl("create", "namespace", NS)
    writer = kill_run.Writer(NS)
    writer.start()
    kill_run.bootstrap(KEPT)
    with writer.may_write:
        before, running = KEPT.owned(), KEPT.running()
        collector_job.nobody_owns(KEPT, before)
        installs(before, known(), running)
        collector_job.stores(KEPT, before, running)
    kill_run.deletion(KEPT, claims=1)
    kill_run.nothing_is_missing(KEPT, writer)
    kubectl("delete", "namespace", NS, timeout=500)


def installs(before, objects, running):
    """Each way to install and to take away, while one Cassandra runs on."""
    with step("the store cannot be deleted by mistake"):
        kubectl("create", "namespace", "empty")
        the_store_is_kept()
    with step("kubectl delete -f of everything; the database runs on"), away("Navigator is removed"):
        said = is_refused("delete", "-f", MANIFEST)
        claim("it is refused for the namespace and the claim, and nothing else", said.count("is forbidden") == 2, said)
        uninstalled(before, running, COLLECTED)
        # A garbage collector that starts anew deletes nothing either (collector_job tries more).
        restart("controller-manager")
        uninstalled(before, running, COLLECTED)
    with step("helm install over what was kept; nothing else has changed"):
        print(helm("install", "navigator", CHART, "--take-ownership"))
        is_installed()
        installed_again(before, objects, running)
    with step("helm upgrade with other values"):
        with away("the server is replaced"):
            helm("upgrade", "navigator", CHART, "--reuse-values", "--set", "controller.replicas=2,log.filter=debug", "--wait", "--timeout=8m")
            is_installed()
        claim("two controllers run", len(pids("controller")) == 2, pids("controller"))
        installed_again(before, objects, running)
    with step("helm uninstall; the database runs on"), away("Navigator is removed"):
        print(helm("uninstall", "navigator", "--wait"))
        uninstalled(before, running, 5)
        left = {name: bool(get(*name)) for name in (
            ("configmap", "-n", "navigator", "navigator-store"), ("secret", "-n", "navigator", "navigator-apiserver-tls"),
            ("lease", "-n", "navigator", "navigator-controller"), ("validatingadmissionpolicy", "navigator-store-keeper"))}
        claim("all of that stays but the policy, as docs/install.md says", list(left.values()) == [True, True, True, False], left)
    with step("helm install; it finds the database again"):
        helm("install", "navigator", CHART)
        is_installed()
        installed_again(before, objects, running)


if __name__ == "__main__":
    main(job)
