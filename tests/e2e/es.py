"""Documents over HTTP, as an application writes and reads them."""
import base64
import json
import ssl
import threading
import time
import urllib.error
import urllib.request

INDEX = "orders"


class Node:
    """Talks to one node and to no other: with CAs to trust (PEM) over TLS, with a user and a password, and with a file of a
    certificate and its key, where they are given."""

    def __init__(self, address, trust=None, login=None, own=None):
        self.base = f"{'https' if trust else 'http'}://{address}:9200"
        self.context = ssl.create_default_context(cadata=trust) if trust else None
        if own:
            self.context.load_cert_chain(own)
        self.headers = {"Authorization": "Basic " + base64.b64encode(":".join(login).encode()).decode()} if login else {}

    def ask(self, method, path, body=None, timeout=30):
        """Status and decoded body; raises OSError when there was no answer."""
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        kind = "application/x-ndjson" if isinstance(body, bytes) else "application/json"
        request = urllib.request.Request(self.base + path, data, {"Content-Type": kind, **self.headers}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=timeout, context=self.context) as answer:
                return answer.status, json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read() or b"null")

    def make_index(self, shards):
        """An index whose shards have one copy each: a node that goes too early takes documents with it."""
        return self.ask("PUT", f"/{INDEX}", {"settings": {"number_of_shards": shards, "number_of_replicas": 0}})

    def write(self, first, count):
        """Indexes documents in one request; returns the numbers of those that were acknowledged."""
        lines = []
        for number in range(first, first + count):
            lines += [{"index": {"_id": str(number)}}, {"number": number, "body": "x" * 512}]
        status, answer = self.ask("POST", f"/{INDEX}/_bulk", "".join(json.dumps(line) + "\n" for line in lines).encode())
        if status != 200:
            return set()
        return {int(item["index"]["_id"]) for item in answer["items"] if item["index"]["status"] in (200, 201)}

    def read(self, numbers):
        """Those of the documents that are there with the right body, each asked for by its id."""
        found, numbers = set(), sorted(numbers)
        for start in range(0, len(numbers), 500):
            ids = [str(number) for number in numbers[start:start + 500]]
            _, answer = self.ask("POST", f"/{INDEX}/_mget", {"ids": ids})
            found |= {int(doc["_id"]) for doc in answer["docs"]
                      if doc.get("found") and doc["_source"]["number"] == int(doc["_id"])}
        return found


class Writer(threading.Thread):
    """Writes until it is stopped, and keeps what was acknowledged. A refused or lost write is tried again as another one."""

    def __init__(self, node, first):
        super().__init__(daemon=True)
        self.node, self.next = node, first
        self.acknowledged, self.failures, self.longest = set(), 0, 0.0
        self.ends = threading.Event()

    def run(self):
        while not self.ends.is_set():
            begun = time.monotonic()
            try:
                done = self.node.write(self.next, 10)
            except OSError:
                done = set()
            self.longest = max(self.longest, time.monotonic() - begun)
            self.acknowledged |= done
            self.failures += len(done) < 10
            self.next += 10
            self.ends.wait(0.05)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.ends.set()
        self.join(timeout=60)


class Client(threading.Thread):
    """Writes a document and reads it back, again and again, and asks each time how the cluster is, until it is stopped.

    It stays with one node. A request that fails is tried once more, at another one.
    """

    def __init__(self, addresses, index=INDEX, first=0):
        super().__init__(daemon=True)
        self.addresses, self.index, self.next = addresses, index, first
        self.turn = self.done = self.retried = 0
        self.longest, self.failed, self.acknowledged, self.seen = 0.0, [], set(), {}
        # When a request was answered last, and the longest time between two answers.
        self.answered, self.gap = None, 0.0
        self.ends = threading.Event()

    def ask(self, method, path, body=None, timeout=15):
        """The answer's body, or None when it failed twice."""
        begun, last = time.monotonic(), ""
        for attempt in (1, 2):
            addresses = self.addresses() or ["127.0.0.1"]
            address = addresses[self.turn % len(addresses)]
            try:
                code, answer = Node(address).ask(method, path, body, timeout)
                if code in (200, 201):
                    now = time.monotonic()
                    self.done += 1
                    self.longest = max(self.longest, now - begun)
                    self.answered, self.gap = now, max(self.gap, now - (self.answered or begun))
                    return answer
                last = f"{code}: {answer}"
            except (OSError, ValueError) as error:
                last = f"{type(error).__name__}: {error}"
            last = f"{method} {path} at {address}: {last}"
            self.turn += 1
            self.retried += attempt == 1
        self.failed.append(last[:400])
        return None

    def health(self):
        """The color that any node tells; a cluster without a master for a moment tells none, and serves."""
        for address in self.addresses():
            try:
                code, answer = Node(address).ask("GET", "/_cluster/health?timeout=1s&master_timeout=1s", timeout=3)
            except (OSError, ValueError):
                continue
            if code == 200:
                return answer["status"]
        return "unknown"

    def run(self):
        while not self.ends.is_set():
            number, self.next = self.next, self.next + 1
            path = f"/{self.index}/_doc/{number}"
            if self.ask("PUT", f"{path}?timeout=10s", {"number": number}) is not None:
                self.acknowledged.add(number)
                found = self.ask("GET", path)
                if found is not None and found["_source"]["number"] != number:
                    self.failed.append(f"document {number} was acknowledged, and is not there: {found}")
            color = self.health()
            self.seen[color] = self.seen.get(color, 0) + 1
            self.ends.wait(0.2)

    def figures(self):
        return (f"{self.done} requests, {self.retried} tried again, {len(self.failed)} failed after that; the slowest took {self.longest:.1f} s, "
                f"at most {self.gap:.1f} s without an answer; looks at the health: {self.seen}")

    def missing(self):
        """Those of the acknowledged documents that are not there."""
        numbers, there = sorted(self.acknowledged), set()
        for start in range(0, len(numbers), 500):
            ids = [str(number) for number in numbers[start:start + 500]]
            answer = self.ask("POST", f"/{self.index}/_mget", {"ids": ids}) or {"docs": []}
            there |= {int(doc["_id"]) for doc in answer["docs"] if doc.get("found")}
        return [number for number in numbers if number not in there]

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.ends.set()
        self.join(timeout=60)
