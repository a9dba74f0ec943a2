#!/usr/bin/env python3
"""taken_over.py NAVIGATOR: a ring whose people made its logins (config.authenticator) becomes one whose logins are Navigator's, under a client of
theirs that writes and reads with its own login; a wrong administrator is told and changes nothing. By `navigator local`; 10 minutes.
"""
import contextlib
import json
import os
import shutil
import sys
import tempfile
import threading
from pathlib import Path

from renewals import values
from run import Failed, Local, check, cql, home, say, until

VERSION = "5.0.6"
PODS = ("cass-old-a-0", "cass-old-a-1", "cass-old-a-2")
KNOWN = {"username": "cassandra", "password": "cassandra"}
DBA = {"username": "dba", "password": "their own word"}
APP = {"username": "app", "password": "of people, too"}
MANIFEST = f"""apiVersion: navigator.jetstack.io/v1beta1
kind: CassandraCluster
metadata: {{name: old}}
spec:
  version: "{VERSION}"
  jvm: {{heap: 384Mi}}
  security: {{mode: Open}}
  config: {{authenticator: PasswordAuthenticator, authorizer: CassandraAuthorizer, role_manager: CassandraRoleManager}}
  nodePools:
  - {{name: a, replicas: {len(PODS)}, persistence: {{size: 1Gi}}}}
"""


class Client(threading.Thread):
    """The application of before, over a new plain connection each time; where a node does not answer, the next is asked."""

    def __init__(self, addresses):
        super().__init__(daemon=True)
        self.addresses, self.done, self.retried, self.failed, self.ends = addresses, 0, 0, [], threading.Event()

    def run(self):
        while not self.ends.wait(0.3):
            number, why = self.done + len(self.failed), []
            for attempt in range(len(PODS)):
                try:
                    with cql.Session(self.addresses[(number + attempt) % len(PODS)], credentials=APP) as session:
                        session.run(f"INSERT INTO shop.orders (id, body) VALUES ({number}, 'kept')")
                        check(session.run(f"SELECT body FROM shop.orders WHERE id = {number}") == [["kept"]], "row", number)
                    self.done += 1
                    break
                except (OSError, cql.Refused, Failed) as error:
                    why.append(f"{type(error).__name__}: {error}"[:200])
                    self.retried += attempt == 0
            else:
                self.failed.append(f"{number}: {why}")


def session(address, login):
    return cql.Session(address, credentials=login)


def secret(local, login):
    local.kubectl("delete", "secret", "dba", "--ignore-not-found")
    words = [f"--from-literal={key}={value}" for key, value in login.items()]
    local.kubectl("create", "secret", "generic", "dba", *words)


def conditions(local):
    status = json.loads(local.kubectl("get", "cassandracluster", "old", "-o", "json"))["status"]
    return {one["type"]: one for one in status["conditions"]}


def document(local):
    return json.loads(values(local, "secret", "cass-old-pilot")["users.json"])


def people_make_logins(address):
    with session(address, KNOWN) as people:
        for statement in (
                "ALTER KEYSPACE system_auth WITH replication = {'class': 'NetworkTopologyStrategy', 'navigator-default-datacenter': 3}",
                f"CREATE ROLE dba WITH PASSWORD = '{DBA['password']}' AND LOGIN = true AND SUPERUSER = true",
                f"CREATE ROLE app WITH PASSWORD = '{APP['password']}' AND LOGIN = true",
                "CREATE KEYSPACE shop WITH replication = {'class': 'NetworkTopologyStrategy', 'navigator-default-datacenter': 3}",
                "CREATE TABLE shop.orders (id int PRIMARY KEY, body text)",
                "GRANT ALL ON KEYSPACE shop TO app",
                *(f"SELECT * FROM system_auth.{table}" for table in ("roles", "role_members", "role_permissions"))):
            people.run(statement, "ALL" if statement.startswith("SELECT") else "ONE")


def lives(local, place):
    path = place / "old.yaml"
    path.write_text(MANIFEST)
    local.run("up", "--home", f"cassandra={home('cassandra', VERSION)}", "-f", path, "--wait", timeout=1800)
    addresses = [local.address(pod) for pod in PODS]
    until("people can log in", lambda: session(addresses[0], KNOWN))
    people_make_logins(addresses[0])
    client = Client(addresses)
    client.start()
    until("the application writes", lambda: client.done > 3)

    say("--- without a superuser of theirs it is refused")
    wanted = {"mode": None, "internode": {"tls": "Required"}, "client": {"tls": "Optional"}, "authentication": "Password"}
    patch = lambda security, code=0: local.kubectl("patch", "cassandracluster", "old", "--type", "merge", "-p", json.dumps({"spec": {"security": security}}), code=code)
    check(patch(wanted, code=1) == "", "it was taken")
    say("--- a wrong one is told")
    secret(local, DBA | {"password": "another word"})
    patch(wanted | {"adminSecret": {"name": "dba"}})
    told = until("the condition says so", lambda: (
        "nor that of dba" in (seen := conditions(local).get("Secured", {})).get("message", "") and seen or check(False, seen)))
    say(f"    {told['message'][:300]}")
    check(document(local)["superuser"]["name"] == "dba", "the pilots have it")
    say("--- the right one")
    secret(local, DBA)
    until("the cluster is on what is wanted", lambda: (
        (seen := conditions(local))["Secured"]["reason"] == "PlainClientsServed" and seen["UsersReady"]["status"] == "True" or check(False, seen["Secured"])))
    check("superuser" not in document(local), "no pilot has a superuser's password any more")
    before = client.done
    until("the application goes on", lambda: client.done > before + 10)

    trust = values(local, "configmap", "cass-old-ca")["ca.crt"]
    for address in addresses:
        for tls in ({}, {"ca.crt": trust}):
            for login in (DBA, APP):
                with session(address, login | tls) as known:
                    check(known.run("SELECT cluster_name FROM system.local")[0][0].startswith("old-"), login["username"], tls)
            for stranger in (KNOWN, DBA | {"password": "another word"}):
                try:
                    session(address, stranger | tls)
                except cql.Refused:
                    continue
                check(False, stranger["username"], "got in")
    with session(addresses[0], DBA | {"ca.crt": trust}) as known:
        ours = sorted(role for (role, superuser) in known.run("SELECT role, is_superuser FROM system_auth.roles") if role.startswith("navigator_"))
        check(len(ours) == 2, ours)
        rights = {row[-1] for row in known.run("LIST ALL PERMISSIONS OF app")}
        check("MODIFY" in rights, "rights that people gave", rights)
    say("--- the settings of before may go")
    local.kubectl("patch", "cassandracluster", "old", "--type", "merge", "-p", '{"spec": {"config": null}}')
    before = client.done
    until("it is secured as before", lambda: conditions(local)["Secured"]["reason"] == "PlainClientsServed" and conditions(local)["Ready"]["status"] == "True")
    until("the application goes on", lambda: client.done > before + 10)
    client.ends.set()
    client.join()
    say(f"    {client.done} rows, {client.retried} tried again, failed: {client.failed[:3]}")
    check(not client.failed, len(client.failed), "failed")
    with session(addresses[0], APP) as known:
        # A copy that was away may not have every row yet.
        rows = len(known.run("SELECT id FROM shop.orders", "ALL"))
        check(rows == client.done, rows, "rows of", client.done)


def main():
    place = Path(tempfile.mkdtemp(prefix="navigator-taken-over-"))
    place.chmod(0o711)
    local = Local(sys.argv[1], place / "state")
    try:
        lives(local, place)
        say("=== ok")
    finally:
        if os.environ.get("KEEP") != "1":
            local.kill_everything()
            with contextlib.suppress(OSError):
                shutil.rmtree(place)


if __name__ == "__main__":
    main()
