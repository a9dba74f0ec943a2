"""What leaves: a machine is emptied in order, a node takes no row with it, and a namespace no database before it has stopped."""
import json
import re
import subprocess
import time

from cassandra import DriverException

from bed import KUBECTL, claim, get, kubectl, main, say, step
from cluster import Cassandra
from navigator import install
from plugin import Plugin

NS = "leaving"
LEFT = Cassandra(NS)
ROWS = 3_000


def process_runs():
    status = LEFT.pilot()["status"]
    return bool(status.get("process")) or json.dumps(status)


def machine_is_emptied():
    """Both nodes are on the one machine, and each row has one copy: no quorum keeps the second node when the first is away."""
    plugin, machine = Plugin(NS), LEFT.pod()["spec"]["nodeName"]
    before = {LEFT.pod_uid(node) for node in (0, 1)}
    begun = time.monotonic()
    drained = plugin.run("drain", machine, "--wait", "--deadline", "300", timeout=330)
    said = drained.stdout + drained.stderr
    claim("kubectl navigator drain --wait ends well", drained.returncode == 0, said)
    claim("it said when each node left", said.count("has left") == 2, said)
    say(f"    empty after {time.monotonic() - begun:.0f} s")

    def waiting():
        pods = LEFT.pods()
        away = [pod for pod in pods if not pod["spec"].get("nodeName") and pod["metadata"]["uid"] not in before]
        return len(away) == 2 or json.dumps([(pod["metadata"]["name"], pod["status"]) for pod in pods])
    LEFT.wait("both have another pod, which waits for the machine", waiting, 120)
    told = LEFT.tells("Ready", "False", "PredicateBlocked", 60)
    claim("the cluster says why", f"machine {machine}" in told and "is cordoned" in told, told)
    claim("it is not Stalled by that", not LEFT.told("Stalled"), LEFT.told("Stalled"))
    said = plugin.says(0, "drain", machine, "--cancel")
    claim("the machine is uncordoned", f"node/{machine} uncordoned" in said, said)


def namespace_goes():
    """Deletes the namespace; shows that its database was stopped and not killed, and that nothing waited without need."""
    log = subprocess.Popen([*KUBECTL, "logs", "-f", "-n", NS, LEFT.pod_name(), "-c", "cassandra"], stdout=subprocess.PIPE, text=True)
    begun = time.monotonic()
    deleting = subprocess.Popen([*KUBECTL, "delete", "namespace", NS], stdout=subprocess.DEVNULL)
    # `kubectl logs` ends with the container, however long a busy machine needs for that.
    said = log.communicate(timeout=500)[0]
    ended = time.monotonic()
    claim("kubectl delete ends well", deleting.wait(timeout=500) == 0)
    gone = time.monotonic()
    claim("the namespace is gone", get("namespace", NS) is None)
    # Kubernetes by itself would look again after half of the grace period, 150 s.
    claim("it waited for the database and for nothing else", gone - ended < 140, (ended - begun, gone - ended))
    say(f"    {ended - begun:.0f} s for the database, {gone - ended:.0f} s for the rest")
    stopped = [line for line in said.splitlines() if "Database stopped" in line]
    # 143 is Java's own end after SIGTERM; a killed process would say 137.
    claim("the database was stopped, not killed", any(re.search(r'code"?[=:] ?(0|143)\b', line) for line in stopped), said[-2000:])


def job():
    with step("a Cassandra of two nodes"):
        install()
        kubectl("create", "namespace", NS)
        LEFT.apply(LEFT.manifest(2))
        LEFT.ready(nodes=2)
    with step(f"write {ROWS} rows, one copy of each"):
        with LEFT.client() as session:
            session.write(ROWS)

            def alone():
                try:
                    rows = session.rows_on(LEFT.address(1), range(ROWS))
                except DriverException as error:
                    return f"the client could not learn of the ring: {error}"
                return rows if len(rows) > ROWS / 10 else f"{len(rows)} on {LEFT.address(1)} of {session.ring()}"
            held = LEFT.wait("the node that is to leave holds some of them, and nobody else does", alone, 120)
            say(f"    {len(held)} of {ROWS}")
    with step("kubectl navigator drain empties the machine; --cancel, and both nodes are back with their rows"):
        machine_is_emptied()
        LEFT.ready(nodes=2, deadline=400)
        LEFT.has_rows(ROWS)
    with step("kubectl patch to one node; the other decommissions itself and takes no row with it"):
        LEFT.scale(1)
        LEFT.ready(nodes=1, deadline=400)
        LEFT.wait("its Pilot is gone", lambda: LEFT.pilot(1) is None or "still there", 180)
        claims = LEFT.names("pvc")
        claim("its claim is gone", claims == [LEFT.claim_name(0)], claims)
        with LEFT.client() as session:
            claim("the node that stays is the only one", session.nodes() == [LEFT.address()], session.nodes())
        LEFT.has_rows(ROWS)
    with step("kubectl delete namespace with a cluster in it"):
        namespace_goes()
    with step("the same while its database starts"):
        kubectl("create", "namespace", NS)
        LEFT.apply()
        LEFT.wait("Cassandra's process is there", process_runs)
        namespace_goes()


if __name__ == "__main__":
    main(job)
