"""A secured Elasticsearch and a secured Cassandra on a real Kubernetes: TLS and passwords from its first second, renewed and changed while it runs.

At its end everything that anybody can read without a right on Secrets is searched for each password, key and hash.
"""
import base64
import json
import re
import socket
import ssl
import tempfile
import threading
import time

import secured_ring
from bed import RUN, claim, get, keep_logs, kubectl, main, say, step
from cluster import Elasticsearch
from es import Node
from navigator import install
from plugin import Plugin

NS = "secured"
SAFE = Elasticsearch(NS, "safe")
OBJ = f"es-{SAFE.name}"
USER = "app@example.org"
LEAVER = "leaver"


def secret(name, namespace=NS):
    """The values of a Secret, or None."""
    found = get("secret", "-n", namespace, name)
    return found and {key: base64.b64decode(value).decode() for key, value in found.get("data", {}).items()}


def trust():
    return get("configmap", "-n", NS, f"{OBJ}-ca")["data"]["ca.crt"]


def node(login=None, at=0, plain=False):
    return Node(SAFE.address(at), None if plain else trust(), login)


def login(name):
    return login_of(NS, name)


def login_of(namespace, name):
    values = secret(name, namespace)
    return values["username"], values["password"]


def code(client, method="GET", path="/", body=None):
    """The status of an answer, or why there was none."""
    try:
        return client.ask(method, path, body, timeout=10)[0]
    except OSError as error:
        return f"{type(error).__name__}: {error}"


class Outsider(threading.Thread):
    """Tries every 100 ms, from the first second on, whatever anybody on the network could."""

    def __init__(self):
        super().__init__(daemon=True)
        self.let_in, self.tries, self.ends = [], 0, threading.Event()

    def run(self):
        while not self.ends.wait(0.1):
            for name in SAFE.names("pods"):
                address = (get("pod", "-n", NS, name) or {}).get("status", {}).get("podIP")
                if not address:
                    continue
                context = ssl.create_default_context()
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
                for user in (None, ("elastic", "changeme"), ("elastic", "")):
                    for plain in (True, False):
                        client = Node(address, None, user)
                        if not plain:
                            client.base, client.context = client.base.replace("http:", "https:"), context
                        self.tries += 1
                        answered = code(client)
                        if answered == 200:
                            self.let_in.append((name, user, plain))


def served(port, at=0):
    """The certificate that a port shows, in DER."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection((SAFE.address(at), port), timeout=10) as plain, context.wrap_socket(plain) as secured:
        return secured.getpeercert(binary_form=True)


def made():
    thing = SAFE.manifest(2)
    thing["spec"]["security"] = {"mode": "Secure", "users": [{"name": USER, "roles": ["viewer"]}]}
    said = SAFE.apply(thing)
    claim("nobody is warned of an open cluster", "no login" not in said, said)
    outsider = Outsider()
    outsider.start()
    SAFE.ready(nodes=2)
    for kind in ("Secured", "CertificatesValid", "UsersReady"):
        SAFE.tells(kind, "True")
    outsider.ends.set()
    outsider.join(timeout=60)
    claim(f"an outsider was let in by none of {outsider.tries} tries", outsider.tries > 20 and not outsider.let_in, outsider.let_in[:5])


def who_is_served():
    admin = login(f"{OBJ}-admin")
    claim("a plain connection is refused", code(node(admin, plain=True)) not in range(200, 300), code(node(admin, plain=True)))
    claim("without a password nothing is answered", code(node()) == 401, code(node()))
    claim("a wrong password is refused", code(node(("elastic", "changeme"))) == 401)
    claim("the administrator is served", code(node(admin)) == 200, code(node(admin)))
    ip = get("service", "-n", NS, OBJ)["spec"]["clusterIP"]
    claim("also through the Service, by its address", code(Node(ip, trust(), admin)) == 200, code(Node(ip, trust(), admin)))
    # The bed's volumes lie on the machine's one disk, however full that is.
    ignored = {"persistent": {"cluster.routing.allocation.disk.threshold_enabled": False}}
    claim("the administrator may change a setting", code(node(admin), "PUT", "/_cluster/settings", ignored) == 200)
    written = node(admin).ask("PUT", "/orders/_doc/1?refresh=true", {"number": 1})
    claim("a document is written", written[0] == 201, written)
    user = login(SAFE.status()["binding"]["name"])
    claim("the binding is that of the user", user[0] == USER, user[0])
    claim("the user reads it", code(node(user), path="/orders/_doc/1") == 200)
    claim("and may not write", code(node(user), "PUT", "/orders/_doc/2", {"number": 2}) == 403)
    claim("two nodes are one cluster", node(admin).ask("GET", "/_cluster/health")[1]["number_of_nodes"] == 2)


def plugin():
    """What a person types, with a person's rights."""
    safe, ring = Plugin(NS), Plugin(secured_ring.RING.namespace)
    names = sorted(SAFE.names("pods"))
    said = safe.says(0, "shell", SAFE.name, "--", "_cat/nodes?h=name")
    claim("shell is let in by TLS and a password", sorted(said.split()) == names, said)
    said = safe.says(0, "shell", SAFE.name, "--as", USER, "--", "_security/_authenticate?filter_path=username")
    claim("and as a user of the spec", USER in said, said)
    left = kubectl("exec", "-n", NS, names[0], "-c", "elasticsearch", "--", "ls", "/etc/navigator")
    claim("its login is not left behind", "console-" not in left, left)
    for one, cluster, prefix, uses in ((safe, SAFE, OBJ, 4), (ring, secured_ring.RING, secured_ring.OBJ, 2)):
        file = one.folder / "ca.crt"
        told = json.loads(one.says(0, "get-credentials", cluster.name, "--ca", str(file), "-o", "json"))
        claim("get-credentials prints what the Secret holds", (told["username"], told["password"]) == login_of(cluster.namespace, f"{prefix}-admin"))
        claim("with the CA that clients trust", file.read_text() == get("configmap", "-n", cluster.namespace, f"{prefix}-ca")["data"]["ca.crt"])
        rows = [line for line in one.says(0, "certificates", cluster.name).splitlines() if line.endswith("yes")]
        claim("certificates shows each of them as current", len(rows) == uses, rows)


def a_removed_user_is_out():
    """Also with a token that it made before. (The bed's Elasticsearch has no module that analyses e-mail addresses, and so cannot make the index
    in which API keys lie.)"""
    kept = {"name": USER, "roles": ["viewer"]}
    SAFE.patch(security={"users": [kept, {"name": LEAVER, "superuser": True}]})

    def applied():
        users = SAFE.status()["security"]["users"]
        return any(user["name"] == LEAVER and user["state"] == "Applied" for user in users) or str(users)

    SAFE.wait("the user is there", applied)
    leaver = login(f"{OBJ}-user-{LEAVER}")
    trial = node(login(f"{OBJ}-admin")).ask("POST", "/_license/start_trial?acknowledge=true")
    claim("the license allows tokens", trial[0] == 200, trial)
    made = node(leaver).ask("POST", "/_security/oauth2/token", {"grant_type": "password", "username": leaver[0], "password": leaver[1]})
    claim("the user makes a token", made[0] == 200, made[0])
    bearers = [node(at=at) for at in range(2)]
    for bearer in bearers:
        bearer.headers = {"Authorization": f"Bearer {made[1]['access_token']}"}
        claim("which lets in", code(bearer) == 200, code(bearer))
    SAFE.patch(security={"users": [kept]})
    for at, bearer in enumerate(bearers):
        SAFE.wait(f"the user is refused by node {at}", lambda at=at: code(node(leaver, at)) == 401 or str(code(node(leaver, at))))
        SAFE.wait(f"its token is refused by node {at}", lambda bearer=bearer: code(bearer) == 401 or str(code(bearer)))
    SAFE.tells("UsersReady", "True")


def changed_while_it_runs():
    before, admin = SAFE.processes(), login(f"{OBJ}-admin")
    text = "another password, with spaces"
    kubectl("patch", "secret", "-n", NS, f"{OBJ}-admin", "--type", "merge", "-p", json.dumps({"stringData": {"password": text}}))
    begun = time.monotonic()
    for at in range(2):
        SAFE.wait("the new password is served", lambda at=at: code(node((admin[0], text), at)) == 200 or str(code(node((admin[0], text), at))))
        claim(f"the former one is refused by node {at}", code(node(admin, at)) == 401)
    say(f"    after {time.monotonic() - begun:.0f} s")
    ports = {(port, at): served(port, at) for port in (9200, 9300) for at in range(2)}
    SAFE.patch(security={"certificates": {"renewedAt": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}})
    begun = time.monotonic()
    for (port, at), former in ports.items():
        SAFE.wait(f"node {at} shows another certificate at {port}", lambda port=port, at=at, former=former: served(port, at) != former or "the same")
    say(f"    all certificates after {time.monotonic() - begun:.0f} s")
    SAFE.tells("CertificatesValid", "True")
    claim("no database was started anew", SAFE.processes() == before, (SAFE.processes(), before))


class Client(threading.Thread):
    """Asks all the time, over a connection of its own each time; what fails is asked once more."""

    def __init__(self, ask):
        super().__init__(daemon=True)
        self.ask, self.asked, self.failed, self.ends = ask, 0, [], threading.Event()

    def run(self):
        while not self.ends.wait(0.3):
            at = self.asked % 2
            self.asked += 1
            if self.ask(at) is not True and (said := self.ask(at)) is not True:
                self.failed.append(said)


KEY = "/usr/share/elasticsearch/data/.navigator/tls/node.key"


class Thief:
    """Has the private keys of two nodes, and reads what everybody may: which certificates were signed for them."""

    PLACES = ((SAFE, "elasticsearch", KEY, 9300), (secured_ring.RING, "cassandra", "/var/lib/cassandra/.navigator/tls/node.key", 7000))

    def __init__(self):
        self.keys = [kubectl("exec", "-n", one.namespace, one.pod_name(0), "-c", container, "--", "cat", path) for one, container, path, _ in self.PLACES]
        self.former = [self.certificate(one) for one, *_ in self.PLACES]

    @staticmethod
    def certificate(one):
        return get("pilot", "-n", one.namespace, one.pod_name(0))["spec"]["security"]["internodeCertificate"]["chain"]

    def let_in(self, which, chain):
        """True if a node takes a certificate and the stolen key; else why not."""
        one, _, _, port = self.PLACES[which]
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
            file.write(self.keys[which] + chain)
            file.flush()
            try:
                context.load_cert_chain(file.name)
                with socket.create_connection((one.address(0), port), timeout=10) as plain, context.wrap_socket(plain) as secured:
                    # With TLS 1.3 a server refuses a certificate after the handshake.
                    secured.settimeout(3)
                    try:
                        secured.recv(1)
                    except TimeoutError:
                        pass
                    return True
            except OSError as error:
                return str(error)

    def has_both(self):
        for which in (0, 1):
            said = self.let_in(which, self.former[which])
            claim("a stolen key is as good as the node", said is True, said)

    def has_nothing(self):
        for which, (one, *_) in enumerate(self.PLACES):
            for chain in (self.former[which], self.certificate(one)):
                said = self.let_in(which, chain)
                claim("a stolen key is of no use with any certificate", said is not True, said)


def authorities_change():
    """All four CAs and all keys of nodes at once, while clients ask that read whom to trust anew each time."""
    ring = secured_ring.RING
    thief = Thief()
    thief.has_both()
    admin, admin_of_ring = login(f"{OBJ}-admin"), login_of(ring.namespace, f"{secured_ring.OBJ}-admin")
    clients = [Client(lambda at: code(node(admin, at)) == 200 or str(code(node(admin, at)))), Client(lambda _: secured_ring.served(admin_of_ring))]
    former, before = {}, [one.processes() for one in (SAFE, ring)]
    for client in clients:
        client.start()
    begun = time.monotonic()
    for one, prefix in ((SAFE, OBJ), (ring, secured_ring.OBJ)):
        former |= {(one, f"{prefix}-{use}-ca"): secret(f"{prefix}-{use}-ca", one.namespace)["tls.crt"] for use in ("internode", "client")}
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        one.patch(security={"certificates": {"caRotatedAt": now, "caOverlap": "0s"}})

    def is_over(one, name):
        values = secret(name, one.namespace)
        trusts = {pilot["spec"]["security"]["internodeCertificate" if "internode" in name else "clientCertificate"]["trust"] for pilot in get("pilots", "-n", one.namespace)}
        over = values["tls.crt"] != former[one, name] and sorted(values) == ["tls.crt", "tls.key"] and trusts == {values["tls.crt"]}
        return over or f"{sorted(values)}, {len(trusts)} bundles; {one.told('CertificatesValid')}"

    for one, name in former:
        one.wait(f"all is of the new CA of {name}", lambda one=one, name=name: is_over(one, name), 300)
    for one in (SAFE, ring):
        one.tells("CertificatesValid", "True", "CertificatesCurrent")
    say(f"    all four CAs after {time.monotonic() - begun:.0f} s")
    thief.has_nothing()
    for client in clients:
        client.ends.set()
        client.join(timeout=60)
        claim(f"none of {client.asked} requests failed twice", client.asked > 5 and not client.failed, client.failed[:5])
    now = [one.processes() for one in (SAFE, ring)]
    claim("no database was started anew", now == before, (now, before))


def secrets():
    """Every password, key and hash, and each as it stands in a Secret."""
    found = set()
    for item in get("secrets", "-n", NS) + get("secrets", "-n", secured_ring.RING.namespace):
        for key, value in item.get("data", {}).items():
            text = base64.b64decode(value).decode()
            if key in ("password", "sources.json"):
                found.add(text if key == "password" else None)
            elif key.endswith(".key"):
                found |= {line for line in text.splitlines() if len(line) == 64}
            elif key == "users.json":
                known = json.loads(text)
                found |= {user["hash"] for user in known["users"]}
                found |= {known["own"][key] for key in ("password", "hash") if "own" in known}
            if key in ("password", "tls.key", "users.json"):
                found.add(value[:120])
    found.discard(None)
    return {text for text in found if len(text) >= 12}


def nothing_leaked():
    wanted = secrets()
    claim("there are passwords, keys and hashes to look for", len(wanted) > 8, len(wanted))
    logs = RUN / "searched"
    keep_logs(logs)
    for kind in ("all,configmaps,pilots,elasticsearchclusters,cassandraclusters,controllerrevisions,events,pvc", "events.events.k8s.io"):
        (logs / f"search.{len(kind)}.yaml").write_text(kubectl("get", kind, "-A", "-o", "yaml"))
    seen, holders = 0, []
    for path in logs.iterdir():
        text = path.read_text(errors="replace")
        seen += len(text)
        # What is JSON within JSON is written with backslashes.
        text = text.replace("\\", "")
        holders += [(path.name, word[:4]) for word in wanted if word in text]
    pods = [(SAFE, "elasticsearch", 0), (SAFE, "elasticsearch", 1), (secured_ring.RING, "cassandra", 0)]
    for one, pod, container in [(one, one.pod_name(at), name) for one, name, at in pods]:
        # The environment of the pilot, which is process 1, cannot be read here: it is in the pod's spec, among the objects.
        done = kubectl("exec", "-n", one.namespace, pod, "-c", container, "--", "sh", "-c", "for p in /proc/[0-9]*; do cat $p/environ $p/cmdline 2>/dev/null; done | tr '\\0' ' '", check=False)
        seen += len(done.stdout)
        holders += [(pod, word[:4]) for word in wanted if word in done.stdout]
    claim(f"none of {len(wanted)} stands anywhere in {seen // 1024} KiB of logs, objects, environments and arguments", not holders, holders[:5])


def deleted():
    for one, prefix, gone in ((SAFE, OBJ, "-ca$|-pilot$"), (secured_ring.RING, secured_ring.OBJ, "-ca$")):
        kubectl("delete", *one.object, "--timeout=240s", timeout=300)
        left = sorted(item["metadata"]["name"] for item in get("secrets", "-n", one.namespace) if item["metadata"]["name"].startswith(prefix))
        claim("what people copied is left, and no CA", f"{prefix}-admin" in left and not [name for name in left if re.search(gone, name)], left)


def job():
    with step("install"):
        install()
    for one in (NS, secured_ring.RING.namespace):
        kubectl("create", "namespace", one)
    with step("kubectl apply, until two nodes of Elasticsearch are Ready and secured"):
        outsider = secured_ring.begin()
        made()
    with step("who is served"):
        who_is_served()
    with step("a ring of one node is Ready and secured"):
        secured_ring.is_secured(outsider)
        secured_ring.who_is_served()
    with step("what a person types"):
        plugin()
    with step("a removed user is out"):
        a_removed_user_is_out()
    with step("a password and all certificates change while it runs"):
        changed_while_it_runs()
        secured_ring.changed_while_it_runs()
    with step("new CAs take the place of all four"):
        authorities_change()
    with step("no password, key or hash stands where it should not"):
        nothing_leaked()
    with step("deletion"):
        deleted()


if __name__ == "__main__":
    main(job)
