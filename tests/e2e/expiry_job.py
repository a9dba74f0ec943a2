"""Certificates of ten minutes, and a controller that is away for twelve: no database ends, and all nodes serve again without a person.

Not part of CI: `make e2e-expiry`.
"""
import http.client
import json
import ssl
import time
from datetime import datetime, timezone

import secure_job
import secured_ring
from bed import claim, get, kubectl, main, say, step
from es import Node
from navigator import install

AWAY_S = 12 * 60
SAFE, RING = secure_job.SAFE, secured_ring.RING
SECURITY = {"mode": "Secure", "certificates": {"duration": "10m"}}


def second(text):
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def scaled(replicas):
    kubectl("scale", "-n", "navigator", "deployment/navigator-controller", f"--replicas={replicas}")


def end_of(one):
    """When the certificate that ends last in a cluster ends, as its pilots say, and the date that the status gives."""
    shown = [pilot["status"]["security"][port]["notAfter"] for pilot in get("pilots", "-n", one.namespace) for port in ("internode", "client")]
    told = one.status()["security"]["nextExpiry"]["notAfter"]
    claim("the status gives the date of the first certificate that ends", told == min(shown), (told, shown))
    claim("the condition names it", told in one.told("CertificatesValid")[2], one.told("CertificatesValid"))
    return max(map(second, shown))


class OpenConnection:
    """One connection to Elasticsearch that stays open."""

    def __init__(self, admin):
        context = ssl.create_default_context(cadata=secure_job.trust())
        self.connection = http.client.HTTPSConnection(SAFE.address(0), 9200, context=context, timeout=30)
        self.connection.connect()
        self.socket = self.connection.sock
        self.headers = Node(SAFE.address(0), None, admin).headers

    def is_served(self):
        self.connection.request("GET", "/_cluster/health", headers=self.headers)
        with self.connection.getresponse() as answer:
            nodes = json.loads(answer.read())["number_of_nodes"]
        # The library would connect again without a word.
        return nodes == 2 and self.connection.sock is self.socket


def job():
    with step("install"):
        install()
    for one in (SAFE, RING):
        kubectl("create", "namespace", one.namespace)
    with step("two nodes of each database, with certificates of ten minutes"):
        for one in (SAFE, RING):
            thing = one.manifest(2)
            thing["spec"]["security"] = SECURITY
            one.apply(thing)
        for one in (SAFE, RING):
            one.ready(nodes=2)
            for kind in ("Secured", "CertificatesValid", "UsersReady"):
                one.tells(kind, "True")
    before = [one.processes() for one in (SAFE, RING)]
    admin, admin_of_ring = secure_job.login(f"{secure_job.OBJ}-admin"), secured_ring.login(f"{secured_ring.OBJ}-admin")
    documents, rows = OpenConnection(admin), secured_ring.session(admin_of_ring)
    rows.write(100, copies=2)
    gone = time.monotonic()
    with step("the controller is away until each certificate has ended"):
        scaled(0)
        ends = max(end_of(one) for one in (SAFE, RING))
        say(f"    the last certificate ends in {ends - time.time():.0f} s")
        while time.monotonic() - gone < AWAY_S:
            claim("an open connection is served", documents.is_served() and rows.read(100) == 100)
            time.sleep(10)
        claim("each certificate has ended", time.time() > ends + 30, datetime.fromtimestamp(ends, timezone.utc))
        said = secure_job.code(secure_job.node(admin))
        claim("a new client is refused", "expired" in str(said), said)
        said = secured_ring.served(admin_of_ring)
        claim("by either database", said is not True, said)
        now = [one.processes() for one in (SAFE, RING)]
        claim("no database ended", now == before, (now, before))
        claim("an open connection is served at the end, too", documents.is_served() and rows.read(100) == 100)
    rows.cluster.shutdown()
    with step("it is back"):
        back = time.monotonic()
        scaled(1)
        for one in (SAFE, RING):
            one.wait("certificates that are valid", lambda one=one: is_renewed(one, ends), 300)
            one.ready(nodes=2)
        say(f"    all serve {time.monotonic() - back:.0f} s after it was back")
        claim("a client is served", secure_job.code(secure_job.node(admin)) == 200, secure_job.code(secure_job.node(admin)))
        claim("by either database", secured_ring.served(admin_of_ring) is True, secured_ring.served(admin_of_ring))
        now = [one.processes() for one in (SAFE, RING)]
        claim("no database was started anew", now == before, (now, before))


def is_renewed(one, ends):
    valid, told = one.told("CertificatesValid"), one.status()["security"]["nextExpiry"]["notAfter"]
    return valid[0] == "True" and second(told) > ends or f"{valid}, {told}"


if __name__ == "__main__":
    main(job)
