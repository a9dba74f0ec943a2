"""Rows by CQL, as an application writes and reads them."""
import ssl
import threading
import time

from cassandra import ConsistencyLevel, OperationTimedOut, Timeout
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
from cassandra.concurrent import execute_concurrent_with_args
from cassandra.policies import DCAwareRoundRobinPolicy, WhiteListRoundRobinPolicy


def tls(trust, own=None):
    """TLS that trusts these CAs (PEM) and shows the certificate in the file `own`; None where there is nobody to trust."""
    if not trust:
        return None
    context = ssl.create_default_context(cadata=trust)
    if own:
        context.load_cert_chain(own)
    return context


class Session:
    """Talks to one node and to no other, at consistency ONE."""

    def __init__(self, address, trust=None, login=None, own=None):
        """`trust`: the CAs to trust, as PEM, where the node speaks TLS; `login`: a name and a password; `own`: a file with a certificate and key."""
        profile = ExecutionProfile(
            load_balancing_policy=WhiteListRoundRobinPolicy([address]),
            consistency_level=ConsistencyLevel.ONE,
            request_timeout=60,
        )
        # The driver gives its own questions about ring and schema 2 s, which is too short on a busy machine.
        self.cluster = Cluster([address], execution_profiles={EXEC_PROFILE_DEFAULT: profile}, connect_timeout=60, control_connection_timeout=60,
                               ssl_context=tls(trust, own), auth_provider=login and PlainTextAuthProvider(*login))
        try:
            self.session = self.cluster.connect()
        except BaseException:
            self.cluster.shutdown()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.cluster.shutdown()

    def write(self, rows, first=0, copies=1):
        """A keyspace of so many copies (a number, or numbers by datacenter) with rows of 1 KiB up to this number; returns after every one was
        acknowledged."""
        if not isinstance(copies, dict):
            copies = {"navigator-default-datacenter": copies}
        self.session.execute("CREATE KEYSPACE IF NOT EXISTS shop WITH replication = " + str({"class": "NetworkTopologyStrategy", **copies}))
        self.session.execute("CREATE TABLE IF NOT EXISTS shop.orders (id int PRIMARY KEY, body text)")
        insert = self.session.prepare("INSERT INTO shop.orders (id, body) VALUES (?, ?)")
        body = "x" * 1024
        for ok, result in self.answers(insert, [(i, f"{i}:{body}") for i in range(first, rows)]):
            if not ok:
                raise result

    def answers(self, statement, arguments):
        """Of each execution whether it ended well, and its result or error. What a busy node does not do within its own two seconds is asked for
        again, for five minutes: rows are judged here, and not the machine."""
        answers, waiting, ends = {}, list(range(len(arguments))), time.monotonic() + 300
        while waiting:
            asked = execute_concurrent_with_args(self.session, statement, [arguments[at] for at in waiting], concurrency=32,
                                                 raise_on_first_error=False)
            answers |= dict(zip(waiting, asked))
            is_late = time.monotonic() > ends
            waiting = [at for at in waiting if not answers[at][0] and isinstance(answers[at][1], (Timeout, OperationTimedOut)) and not is_late]
            time.sleep(1 if waiting else 0)
        return [answers[at] for at in range(len(arguments))]

    def read(self, rows):
        """How many of the rows are there with the right body, each asked for by its key."""
        select = self.session.prepare("SELECT body FROM shop.orders WHERE id = ?")
        good = 0
        for i, (ok, result) in enumerate(self.answers(select, [(i,) for i in range(rows)])):
            row = result.one() if ok else None
            good += bool(row and row.body.startswith(f"{i}:"))
        return good

    def rows_on(self, address, rows):
        """Those of the rows whose only copy is on this node, by the ring's tokens: it alone can have acknowledged them."""
        # A client learns of the ring and of keyspaces when it connects, and later when it is told: after a node came back
        # under another address that may be late.
        self.cluster.refresh_nodes(force_token_rebuild=True)
        self.cluster.refresh_schema_metadata()
        replicas = self.cluster.metadata.get_replicas
        owners = {row: [host.address for host in replicas("shop", row.to_bytes(4, "big"))] for row in rows}
        return [row for row, hosts in owners.items() if hosts == [address]]

    def ring(self):
        """The nodes and keyspaces that the client knows, for people."""
        known = self.cluster.metadata
        return {"nodes": {host.address: host.is_up for host in known.all_hosts()}, "keyspaces": sorted(known.keyspaces)}

    def nodes(self):
        """Addresses of the ring's nodes, as this one counts them."""
        peers = [str(row.peer) for row in self.session.execute("SELECT peer FROM system.peers_v2")]
        return sorted([str(self.session.execute("SELECT listen_address FROM system.local").one().listen_address), *peers])

    def host_id(self):
        return str(self.session.execute("SELECT host_id FROM system.local").one().host_id)


class QuorumClient(threading.Thread):
    """Writes a row and reads it back at QUORUM, or at LOCAL_QUORUM of one datacenter, again and again, until it is stopped.

    A request that fails is tried once more, on a session that is made anew of the addresses that the nodes have then: a pod that
    comes back has another one.
    """

    def __init__(self, addresses, first, login=None, datacenter=None):
        """`datacenter`: where all `addresses` are, and whose LOCAL_QUORUM is asked for."""
        super().__init__(daemon=True)
        self.addresses, self.next, self.datacenter = addresses, first, datacenter
        # The CAs to trust, where it speaks TLS; a file with a certificate and key, and a name and a password: a node that does not ask for them
        # ignores them.
        self.trust, self.own, self.login = None, None, login
        self.cluster = self.session = None
        self.done = self.retried = 0
        self.longest, self.failed, self.acknowledged = 0.0, [], []
        # When a request was answered last, and the longest time between two answers.
        self.answered, self.gap = None, 0.0
        self.ends = threading.Event()

    def connect(self):
        if self.cluster:
            self.cluster.shutdown()
        if self.datacenter:
            profile = ExecutionProfile(DCAwareRoundRobinPolicy(self.datacenter), consistency_level=ConsistencyLevel.LOCAL_QUORUM, request_timeout=15)
        else:
            profile = ExecutionProfile(consistency_level=ConsistencyLevel.QUORUM, request_timeout=15)
        self.cluster = Cluster(self.addresses(), execution_profiles={EXEC_PROFILE_DEFAULT: profile}, connect_timeout=15, control_connection_timeout=15,
                               ssl_context=tls(self.trust, self.own),
                               auth_provider=self.login and PlainTextAuthProvider(*self.login))
        self.session = self.cluster.connect("shop")

    def speak(self, trust, own=None):
        """Connects anew before the next request: over TLS, with these CAs to trust and this certificate to show, or in plain text."""
        self.trust, self.own, self.session = trust, own, None

    def ask(self, statement, *values):
        """The result, or None when it failed twice."""
        begun = time.monotonic()
        for attempt in (1, 2):
            try:
                if attempt == 2 or not self.session:
                    self.connect()
                result = self.session.execute(statement, values)
                self.done += 1
                now = time.monotonic()
                self.longest = max(self.longest, now - begun)
                self.answered, self.gap = now, max(self.gap, now - (self.answered or begun))
                return result
            except Exception as error:  # noqa: BLE001 - whatever a driver says, the request failed
                self.retried += attempt == 1
                last = f"{statement.split()[0]} {values[:1]}: {type(error).__name__}: {error}"
        self.failed.append(last[:400])
        return None

    def run(self):
        while not self.ends.is_set():
            row, self.next = self.next, self.next + 1
            if self.ask("INSERT INTO orders (id, body) VALUES (%s, %s)", row, f"{row}:kept") is not None:
                self.acknowledged.append(row)
                found = self.ask("SELECT body FROM orders WHERE id = %s", row)
                if found is not None and not found.one():
                    self.failed.append(f"row {row} was acknowledged, and is not there")
            self.ends.wait(0.1)

    def figures(self):
        return (f"{self.done} requests at {'LOCAL_' if self.datacenter else ''}QUORUM, {self.retried} tried again, {len(self.failed)} failed after that; the slowest took "
                f"{self.longest:.1f} s, at most {self.gap:.1f} s without an answer")

    def missing(self):
        """Those of the acknowledged rows that are not read at QUORUM."""
        self.connect()
        rows = [(row, self.ask("SELECT body FROM orders WHERE id = %s", row)) for row in self.acknowledged]
        self.cluster.shutdown()
        return [row for row, found in rows if found is None or not found.one()]

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.ends.set()
        self.join(timeout=60)
