"""Documents over HTTP, as an application writes and reads them."""
import json
import threading
import time
import urllib.error
import urllib.request

INDEX = "orders"


class Node:
    """Talks to one node and to no other."""

    def __init__(self, address):
        self.base = f"http://{address}:9200"

    def ask(self, method, path, body=None, timeout=30):
        """Status and decoded body; raises OSError when there was no answer."""
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        kind = "application/x-ndjson" if isinstance(body, bytes) else "application/json"
        request = urllib.request.Request(self.base + path, data, {"Content-Type": kind}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
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
