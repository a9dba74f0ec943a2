#!/usr/bin/env python3
"""cql.py [--level LEVEL] [--credentials FILE] ADDRESS STATEMENT ...: runs CQL at one node and prints the rows, cells parted by tabs.

FILE is what `kubectl navigator get-credentials NAME --ca FILE -o json` prints: the node must show a certificate of its CA for ADDRESS.

As much of the binary protocol (version 4) as that needs, with the standard library alone: no driver, and no cqlsh, which
wants an older Python than Debian's.
"""
import argparse
import json
import socket
import ssl
import struct
import time
import uuid

STARTUP, AUTHENTICATE, QUERY, AUTH_RESPONSE, ERROR, ROWS, WARNING = 1, 3, 7, 15, 0, 2, 8
LEVELS = {"ONE": 1, "QUORUM": 4, "ALL": 5}
DECODE = {
    1: bytes.decode, 10: bytes.decode, 13: bytes.decode,
    2: lambda cell: struct.unpack(">q", cell)[0], 9: lambda cell: struct.unpack(">i", cell)[0],
    4: lambda cell: cell != b"\0", 12: lambda cell: str(uuid.UUID(bytes=cell)),
    16: lambda cell: socket.inet_ntop(socket.AF_INET if len(cell) == 4 else socket.AF_INET6, cell),
}


class Refused(Exception):
    """The database's own words."""


class Answer:
    """Reads an answer from its beginning."""

    def __init__(self, body):
        self.body = body

    def take(self, length):
        head, self.body = self.body[:length], self.body[length:]
        return head

    def short(self):
        return struct.unpack(">H", self.take(2))[0]

    def int(self):
        return struct.unpack(">i", self.take(4))[0]

    def text(self):
        return self.take(self.short()).decode()

    def type(self):
        kind = self.short()
        for _ in range({32: 1, 33: 2, 34: 1}.get(kind, 0)):
            self.type()
        return kind

    def rows(self):
        if self.int() != ROWS:
            return []
        flags, columns = self.int(), self.int()
        if flags & 1:
            self.text(), self.text()
        types = []
        for _ in range(columns):
            if not flags & 1:
                self.text(), self.text()
            self.text()
            types.append(self.type())
        return [[self.cell(kind) for kind in types] for _ in range(self.int())]

    def cell(self, kind):
        length = self.int()
        return None if length < 0 else DECODE.get(kind, bytes.hex)(self.take(length))


class Session:
    def __init__(self, address, port=9042, timeout=60, credentials=None, context=None):
        """`credentials`: `username` and `password`, and with TLS `ca.crt`, the CAs to trust as PEM, unless `context` says whom."""
        self.socket = socket.create_connection((address, port), timeout)
        if not context and credentials and "ca.crt" in credentials:
            context = ssl.create_default_context(cadata=credentials["ca.crt"])
        if context:
            self.socket = context.wrap_socket(self.socket, server_hostname=address)
        options = {"CQL_VERSION": "3.0.0"}
        text = lambda value: struct.pack(">H", len(value)) + value.encode()
        self.exchange(STARTUP, struct.pack(">H", len(options)) + b"".join(text(k) + text(v) for k, v in options.items()))
        if self.asked == AUTHENTICATE:
            if not credentials:
                raise Refused("the database asks for a login: give --credentials")
            login = "\0".join(("", credentials["username"], credentials["password"])).encode()
            self.exchange(AUTH_RESPONSE, struct.pack(">i", len(login)) + login)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def run(self, statement, level="ONE"):
        """Rows as lists of values."""
        text = statement.encode()
        body = self.exchange(QUERY, struct.pack(">i", len(text)) + text + struct.pack(">HB", LEVELS[level], 0))
        return Answer(body).rows()

    def agree(self, deadline=60):
        """Waits until all nodes know the same tables: before that they refuse what is about a new one."""
        until = time.monotonic() + deadline
        while True:
            versions = {row[0] for place in ("local", "peers") for row in self.run(f"SELECT schema_version FROM system.{place}")}
            if len(versions) == 1:
                return
            if time.monotonic() > until:
                raise Refused(f"after {deadline} s the nodes still know different tables: {versions}")
            time.sleep(0.2)

    def exchange(self, opcode, body):
        self.socket.sendall(struct.pack(">BBHBi", 4, 0, 0, opcode, len(body)) + body)
        _, flags, _, self.asked, length = struct.unpack(">BBHBi", self.read(9))
        answer = Answer(self.read(length))
        if flags & WARNING:
            for _ in range(answer.short()):
                answer.text()
        if self.asked == ERROR:
            answer.int()
            raise Refused(answer.text())
        return answer.body

    def read(self, length):
        parts = b""
        while len(parts) < length:
            part = self.socket.recv(length - len(parts))
            if not part:
                raise ConnectionError("the database closed the connection")
            parts += part
        return parts


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--level", default="ONE", choices=LEVELS)
    parser.add_argument("--credentials", type=argparse.FileType())
    parser.add_argument("address")
    parser.add_argument("statements", nargs="+")
    args = parser.parse_args()
    credentials = args.credentials and json.load(args.credentials)
    with Session(args.address, credentials=credentials) as session:
        for statement in args.statements:
            for row in session.run(statement, args.level):
                print("\t".join("" if value is None else str(value) for value in row))
            if statement.split()[0].upper() in ("CREATE", "ALTER", "DROP"):
                session.agree()


if __name__ == "__main__":
    main()
