"""Requests to kube-apiserver, byte for byte as written here, with the administrator's certificate or a token."""
import http.client
import json
import ssl
import threading

from bed import RUN


def connection(timeout=30, certificate=True):
    pki = RUN / "pki"
    context = ssl.create_default_context(cafile=pki / "ca.crt")
    if certificate:
        context.load_cert_chain(pki / "admin.crt", pki / "admin.key")
    return http.client.HTTPSConnection("127.0.0.1", 6443, context=context, timeout=timeout)


def request(method, path, body=None, content_type="application/json", timeout=30, token=None, **headers):
    """Returns the status, the headers and the body, parsed where it is JSON."""
    if isinstance(body, (dict, list)):
        body = json.dumps(body)
    link = connection(timeout, certificate=token is None)
    try:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if token:
            sent["Authorization"] = f"Bearer {token}"
        if body is not None:
            sent["Content-Type"] = content_type
        link.request(method, path, body, sent)
        answer = link.getresponse()
        text = answer.read().decode(errors="replace")
        try:
            text = json.loads(text)
        except ValueError:
            pass
        return answer.status, answer.headers, text
    finally:
        link.close()


class Watch(threading.Thread):
    """Collects the events of a watch until it is stopped."""

    def __init__(self, path):
        super().__init__(daemon=True)
        self.path, self.events, self.link = path, [], connection(timeout=600)
        self.start()

    def run(self):
        try:
            self.link.request("GET", self.path)
            answer = self.link.getresponse()
            while line := answer.readline():
                self.events.append(json.loads(line))
        except (OSError, ValueError, http.client.HTTPException):
            pass

    def stop(self):
        if self.link.sock:
            self.link.sock.close()
