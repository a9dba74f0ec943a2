"""Who may create Secrets makes one under a name of Navigator's before a Cassandra is created; and a user that is taken out of the spec holds a connection open. Not part of
CI: `make e2e-strangers`.
"""
import base64
import json

from cassandra import Unauthorized

from bed import claim, kubectl, main, say, step
from cluster import Cassandra
from cql import Session
from navigator import install

NS = "strangers"
RING = Cassandra(NS, "victim", mode=None)
MARK = "evil"
# A login for pilots as Navigator would make it.
USERS = {"revision": "0123456789abcdef", "users": [], "own": {
    "mark": MARK, "password": "known", "hash": "$2a$10$N9qo8uLOickgx2ZMRZoMyeIjZAgcfl7p92ldGxad68LJZdL17lhWy"}}


def roles():
    with RING.client() as session:
        return {row.role for row in session.session.execute("SELECT role FROM system_auth.roles")}


def strangers_secret():
    name = f"cass-{RING.name}-pilot"
    data = {"users.json": base64.b64encode(json.dumps(USERS).encode()).decode()}
    kubectl("create", "-f", "-", "-n", NS, stdin=json.dumps({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": data}))
    RING.apply(RING.manifest(1))
    told = RING.tells("UsersReady", "False", "SecretNotConfirmed", 300)
    say(f"    {told}")
    uid = RING.get("secret", name)["metadata"]["uid"]
    claim("it names the Secret, and what to type", name in told and f"accept-secrets={uid}" in told, told)
    return name


def open_connection():
    thing = RING.manifest(1)
    thing["spec"]["security"] = {"mode": "Secure", "users": [{"name": "app"}]}
    RING.apply(thing)
    RING.wait("app has a Secret", lambda: RING.get("secret", f"cass-{RING.name}-user-app") is not None or "none")
    RING.tells("UsersReady", "True", deadline=300)
    values = {key: base64.b64decode(value).decode() for key, value in RING.get("secret", f"cass-{RING.name}-user-app")["data"].items()}
    RING.write(1)
    with RING.client() as session:
        session.session.execute("GRANT ALL PERMISSIONS ON ALL KEYSPACES TO app")
    login = (values["username"], values["password"])
    with Session(RING.address(0), values["ca.crt"], login) as connection:
        def may():
            try:
                connection.session.execute("SELECT id FROM shop.orders LIMIT 1")
                return True
            except Unauthorized as error:
                return str(error)
        RING.wait("it may read", may)
        thing["spec"]["security"].pop("users")
        RING.apply(thing)
        RING.wait("it may read no more, on the connection that is open", lambda: may() is not True or "it may", 120)
        say(f"    {may()}")


def job():
    with step("install"):
        install()
    kubectl("create", "namespace", NS)
    with step("a login of pilots lies there before the cluster is created: it is not used"):
        name = strangers_secret()
    with step("it is deleted: the cluster is Ready, and the ring does not know it"):
        kubectl("delete", "secret", name, "-n", NS)
        RING.ready(nodes=1, deadline=900)
        known = roles()
        claim("there is no role of the stranger", f"navigator_{MARK}" not in known and len(known) > 1, known)
    with step("a user that is taken out of the spec holds a connection open"):
        open_connection()
    kubectl("delete", "namespace", NS, timeout=1000)


if __name__ == "__main__":
    main(job)
