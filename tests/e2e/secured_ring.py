"""A secured Cassandra of one node on a real Kubernetes, for secure_job: TLS and passwords from its first second, changed while it runs. The ring of
main_job grows and shrinks."""
import base64
import json
import socket
import ssl
import threading
import time

from bed import claim, get, kubectl, say
from cassandra import Unauthorized
from cassandra.cluster import NoHostAvailable
from cluster import Cassandra
from cql import Session

RING = Cassandra("secured-ring", "ring")
OBJ = f"cass-{RING.name}"
USER = "app@example.org"
# A session that was opened before a change goes on; the database keeps what it knows of a role for 2 s.
CQL = 9042
STARTUP = bytes((4, 0, 0, 0, 1, 0, 0, 0, 22, 0, 1, 0, 11)) + b"CQL_VERSION" + bytes((0, 5)) + b"3.0.0"
READY, ERROR, AUTH_SUCCESS = 2, 0, 16
KNOWN = b"\0cassandra\0cassandra"


def secret(name):
    found = get("secret", "-n", RING.namespace, name)
    return {key: base64.b64decode(value).decode() for key, value in found["data"].items()}


def login(name):
    values = secret(name)
    return values["username"], values["password"]


def session(login_as=None, at=0, plain=False):
    trust = None if plain else secret(f"{OBJ}-admin")["ca.crt"]
    return Session(RING.address(at), trust, login_as)


def served(*arguments, **named):
    """True, or why nobody is."""
    try:
        with session(*arguments, **named):
            return True
    except (NoHostAvailable, OSError) as error:
        return str(error)[:300]


class Outsider(threading.Thread):
    """Tries every 100 ms, from the first second on, to begin a session: plain and over TLS, and with the login that everybody knows."""

    def __init__(self):
        super().__init__(daemon=True)
        self.let_in, self.tries, self.ends = [], 0, threading.Event()

    def run(self):
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        while not self.ends.wait(0.1):
            for name in RING.names("pods"):
                address = (get("pod", "-n", RING.namespace, name) or {}).get("status", {}).get("podIP")
                for tls in (None, context) if address else ():
                    self.tries += 1
                    try:
                        if self.is_let_in(address, tls):
                            self.let_in.append((name, bool(tls)))
                    except OSError:
                        pass

    @staticmethod
    def is_let_in(address, tls):
        with socket.create_connection((address, CQL), timeout=5) as stream, tls.wrap_socket(stream) if tls else stream as stream:
            stream.sendall(STARTUP)
            answer = stream.recv(9)
            if len(answer) == 9 and answer[4] not in (READY, ERROR):
                stream.recv(65536)
                stream.sendall(bytes((4, 0, 0, 0, 15)) + (len(KNOWN) + 4).to_bytes(4, "big") + len(KNOWN).to_bytes(4, "big") + KNOWN)
                answer = stream.recv(9)
            return len(answer) == 9 and answer[4] != ERROR


def begin():
    """Applied, under the eyes of an outsider, who is returned."""
    thing = RING.manifest(1)
    thing["spec"]["security"] = {"mode": "Secure", "users": [{"name": USER}]}
    said = RING.apply(thing)
    claim("nobody is warned of an open cluster", "every client" not in said, said)
    outsider = Outsider()
    outsider.start()
    return outsider


def is_secured(outsider):
    RING.ready(nodes=1)
    for kind in ("Secured", "CertificatesValid", "UsersReady"):
        RING.tells(kind, "True")
    outsider.ends.set()
    outsider.join(timeout=60)
    claim(f"an outsider was let in by none of {outsider.tries} tries", outsider.tries > 20 and not outsider.let_in, outsider.let_in[:5])


def who_is_served():
    admin = login(f"{OBJ}-admin")
    plain = served(admin, plain=True)
    claim("a plain connection is refused", plain is not True)
    for wrong in (None, ("cassandra", "cassandra"), ("admin", "wrong")):
        claim(f"{wrong and wrong[0]} is refused", served(wrong) is not True)
    with session(admin) as one:
        one.write(100)
    user = login(RING.status()["binding"]["name"])
    claim("the binding is that of the user", user[0] == USER, user[0])
    with session(user) as one:
        try:
            one.session.execute("SELECT id FROM shop.orders LIMIT 1")
            claim("a user without rights reads nothing", False)
        except Unauthorized:
            pass
    with session(admin) as one:
        one.session.execute(f'GRANT SELECT ON KEYSPACE shop TO "{USER}"')
    RING.wait("the user reads the rows", lambda: reads(user))


def reads(login_as):
    try:
        with session(login_as) as one:
            return one.read(100) == 100
    except (NoHostAvailable, Unauthorized) as error:
        return str(error)[:200]


def held_open(login_as):
    """A connection that has logged in, without a driver that would connect again."""
    context = ssl.create_default_context(cadata=secret(f"{OBJ}-admin")["ca.crt"])
    stream = context.wrap_socket(socket.create_connection((RING.address(), CQL), timeout=30), server_hostname=RING.address())
    stream.sendall(STARTUP)
    head = stream.recv(9)
    stream.recv(int.from_bytes(head[5:9], "big"))
    token = b"".join(b"\0" + part.encode() for part in login_as)
    stream.sendall(bytes((4, 0, 0, 0, 15)) + (len(token) + 4).to_bytes(4, "big") + len(token).to_bytes(4, "big") + token)
    answer = stream.recv(9)
    claim("a client has logged in", len(answer) == 9 and answer[4] == AUTH_SUCCESS, answer)
    stream.recv(int.from_bytes(answer[5:9], "big"))
    return stream


def is_closed(stream):
    stream.settimeout(0.5)
    try:
        return stream.recv(1) == b"" or "it got an answer"
    except TimeoutError:
        return "it is open"
    except OSError:
        return True


def changed_while_it_runs():
    before, (name, former) = RING.processes(), login(f"{OBJ}-admin")
    held, of_another = held_open((name, former)), held_open(login(RING.status()["binding"]["name"]))
    claim("it stays open", is_closed(held) == "it is open", is_closed(held))
    text = "another password, with 'quotes'"
    kubectl("patch", "secret", "-n", RING.namespace, f"{OBJ}-admin", "--type", "merge", "-p", json.dumps({"stringData": {"password": text}}))
    begun = time.monotonic()
    RING.wait("the new password is served", lambda: served((name, text)))
    RING.wait("the former one is refused", lambda: served((name, former)) is not True)
    say(f"    after {time.monotonic() - begun:.0f} s")
    RING.wait("the connection with the former one is closed", lambda: is_closed(held))
    say(f"    the connection with it was closed after {time.monotonic() - begun:.0f} s; that of another user: {is_closed(of_another)}")
    RING.tells("UsersReady", "True")
    shown = {port: certificate(port) for port in (CQL, 7000)}
    RING.patch(security={"certificates": {"renewedAt": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}})
    begun = time.monotonic()
    for port, earlier in shown.items():
        RING.wait(f"the node shows another certificate at {port}", lambda port=port, earlier=earlier: certificate(port) != earlier or "the same")
    say(f"    all certificates after {time.monotonic() - begun:.0f} s")
    claim("no database was started anew", RING.processes() == before, (RING.processes(), before))


def certificate(port):
    """What a port shows, in DER. A node asks for a certificate too, and says so only after it showed its own."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection((RING.address(), port), timeout=10) as plain, context.wrap_socket(plain) as secured:
        return secured.getpeercert(binary_form=True)
