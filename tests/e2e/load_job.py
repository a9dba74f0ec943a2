"""What somebody with few rights can send through kube-apiserver: the rows of tests/it/serve/load that come that way. Meanwhile others read and
write, and the server goes on."""
import base64
import contextlib
import http.client
import json
import socket
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from bed import RUN, claim, get, kubectl, main, step, wait
from navigator import install, without_controller
from raw import request

NS = "load"
API = f"/apis/navigator.jetstack.io/v1beta1/namespaces/{NS}"
PILOTS = f"{API}/pilots"
# Seconds after which a request of other clients is lost: how long each took is a figure, printed beside the claim.
ANSWER = 120
# Objects, and fields of each: more than a namespace may store.
OBJECTS, FIELDS = 4000, 300
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
METADATA = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
# In the place of a status, of a request that was cut off.
CUT = 0
# The bed's address for pods.
HERE = "10.244.255.1"


def account(name, *verbs):
    """A ServiceAccount with these rights on our kinds; its token."""
    kubectl("create", "serviceaccount", "-n", NS, name)
    kubectl("create", "role", "-n", NS, name, f"--verb={','.join(verbs)}", "--resource=pilots,cassandraclusters")
    kubectl("create", "rolebinding", "-n", NS, name, f"--role={name}", f"--serviceaccount={NS}:{name}")
    return kubectl("create", "token", "-n", NS, name).strip()


def pilot(name, letter="a"):
    fields = {f"e/{at}": letter for at in range(FIELDS)}
    return {"metadata": {"name": name, "annotations": fields, "labels": {"a": name}}, "spec": {}}


class Others:
    """A client that reads and writes one object, all the while."""

    def __init__(self, token):
        self.token, self.slowest, self.asked, self.failed, self.over = token, 0, 0, [], threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self):
        while not self.over.is_set():
            for method, body in (("GET", None), ("PATCH", {"metadata": {"labels": {"at": str(self.asked)}}})):
                begun = time.monotonic()
                try:
                    status = request(method, f"{PILOTS}/a", body, "application/merge-patch+json", timeout=ANSWER, token=self.token)[0]
                except OSError as error:
                    status = repr(error)
                took = time.monotonic() - begun
                self.asked += 1
                self.slowest = max(self.slowest, took)
                if status != 200:
                    self.failed.append(f"{method}: {status} after {took:.1f} s")
            time.sleep(0.1)


@contextlib.contextmanager
def meanwhile(name, token):
    others = Others(token)
    begun = time.monotonic()
    others.thread.start()
    yield
    others.over.set()
    others.thread.join(120)
    claim(f"{name}: {time.monotonic() - begun:.0f} s, {others.asked} requests of others answered, the slowest after {others.slowest:.2f} s",
          not others.failed and others.asked >= 2, others.failed[:5])


def all_at_once(times, path, token, accept="application/json", method="GET", body=None):
    """How many of so many requests at one time were answered with each status; one that was cut off counts as CUT."""
    def one(_):
        try:
            return request(method, path, body() if body else None, timeout=120, token=token, Accept=accept, Accept_Encoding="identity")[0]
        except (OSError, http.client.HTTPException):
            return CUT
    with ThreadPoolExecutor(times) as pool:
        return Counter(pool.map(one, range(times)))


def landed(what, seen, served=0, refused=0, by=(429,), answered=200):
    """Claims what became of an attack: at least so many requests were served, so many refused, and none was cut off or answered otherwise."""
    turned = sum(number for status, number in seen.items() if status in by)
    told = f"{seen[answered]} served, {turned} refused, {seen[CUT]} cut off of {seen.total()}"
    claim(f"{what}: {told}; at least {served} and {refused} of the first two", seen[answered] >= served and turned >= refused
          and seen[answered] + turned == seen.total(), dict(seen))


def in_values(count):
    return ",".join(f"{at:x}" for at in range(count))


def fill(token):
    """Until nothing more is taken."""
    refused = []

    def one(at):
        if not refused:
            status, _, body = request("POST", PILOTS, pilot(f"p{at}"), token=token, timeout=60)
            if status == 403:
                refused.append(body["message"])
            elif status not in (201, 429):
                refused.append(f"{status}: {body}")
    with ThreadPoolExecutor(12) as pool:
        list(pool.map(one, range(OBJECTS)))
    claim("what a namespace may hold is bounded, and the refusal says so", refused and "exceeded what may be stored" in refused[0], refused[:1])


def readers(mallory, others):
    version = request("GET", f"{PILOTS}?limit=1")[2]["metadata"]["resourceVersion"]
    with meanwhile("lists in every form (7)", others):
        forms = [("", "application/yaml"), ("", TABLE), ("", METADATA), ("?pretty=true", "application/json")]
        with ThreadPoolExecutor(len(forms)) as pool:
            seen = list(pool.map(lambda form: all_at_once(2, PILOTS + form[0], mallory, form[1]), forms))
    landed("each is answered, or turned away for a moment", sum(seen, Counter()), served=1)
    with meanwhile("long selectors (8)", others):
        seen = all_at_once(24, f"{PILOTS}?limit=1&labelSelector=a+notin+({in_values(1000)})", mallory)
        longer = all_at_once(24, f"{PILOTS}?labelSelector=a+notin+({in_values(5000)})", mallory)
    landed("as long as may be is answered", seen, served=1)
    landed("longer is refused", longer, refused=24, by=(400, 429))
    claim("and some of them for their length", longer[400] >= 1, dict(longer))
    with meanwhile("watches with long selectors (5)", others):
        seen = all_at_once(100, f"{PILOTS}?watch=1&timeoutSeconds=10&labelSelector=a+in+({in_values(1000)})", mallory)
    landed("they are served, or turned away", seen, served=1)
    with meanwhile("all objects change", others), ThreadPoolExecutor(12) as pool:
        names = [thing["metadata"]["name"] for thing in request("GET", PILOTS)[2]["items"] if thing["metadata"]["name"] != "a"]
        change = {"metadata": {"annotations": pilot("")["metadata"]["annotations"] | {"e/0": "b"}}}
        list(pool.map(lambda name: request("PATCH", f"{PILOTS}/{name}", change, "application/merge-patch+json", 60, mallory), names))
    with meanwhile("lists of the past (6)", others):
        exact = f"{PILOTS}?resourceVersion={version}&resourceVersionMatch=Exact"
        seen = [all_at_once(20, exact + more, mallory) for more in ("&limit=1", "")]
    landed("one by one each is answered, or turned away", seen[0], by=(410, 429))
    landed("the whole is answered, or told to be too large", seen[1], by=(410, 413, 429))


def behind_a_webhook(mallory, others):
    """Nobody answers the webhook's calls."""
    silent = socket.create_server((HERE, 0), backlog=64)
    ca = base64.b64encode((RUN / "pki/ca.crt").read_bytes()).decode()
    kubectl("create", "-f", "-", stdin=json.dumps({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration", "metadata": {"name": "silent"},
        "webhooks": [{"name": "silent.example.com", "failurePolicy": "Ignore", "timeoutSeconds": 10, "sideEffects": "None",
                      "admissionReviewVersions": ["v1"], "clientConfig": {"url": f"https://{HERE}:{silent.getsockname()[1]}/", "caBundle": ca},
                      "rules": [{"apiGroups": ["navigator.jetstack.io"], "apiVersions": ["*"], "operations": ["CREATE"],
                                 "resources": ["cassandraclusters"]}]}]}))
    # Our server knows of it as soon as it asks.
    silent.settimeout(1)

    def asks():
        light = {"apiVersion": "navigator.jetstack.io/v1beta1", "kind": "CassandraCluster", "metadata": {"name": "light"}, "spec": {"version": "5.0.6", "nodePools": []}}
        threading.Thread(target=request, args=("POST", f"{API}/cassandraclusters?dryRun=All", light), kwargs={"token": mallory, "timeout": 120}, daemon=True).start()
        try:
            return [silent.accept()]
        except TimeoutError:
            return "nobody asks it"
    wait("the webhook to be asked", asks)
    heavy = ",".join(["{}"] * 19_000)
    number = iter(range(100))

    def body():
        head = {"apiVersion": "navigator.jetstack.io/v1beta1", "kind": "CassandraCluster", "metadata": {"name": f"heavy-{next(number)}"},
                "spec": {"version": "5.0.6", "nodePools": [{"name": "a", "replicas": 1}]}}
        return f'{json.dumps(head)[:-1]},"unknown":[{heavy}]}}'
    with meanwhile("writes behind a webhook that says nothing (9)", others):
        seen = all_at_once(8, f"{API}/cassandraclusters", mallory, method="POST", body=body)
    kubectl("delete", "validatingwebhookconfiguration", "silent")
    silent.close()
    # 403 says that the namespace is full.
    landed("they are answered", seen, served=1, by=(403, 429), answered=201)


def restarts():
    pods = get("pods", "-n", "navigator", "-l", "app.kubernetes.io/component=apiserver")
    return {pod["metadata"]["uid"]: [status["restartCount"] for status in pod["status"]["containerStatuses"]] for pod in pods}


def job():
    install()
    kubectl("create", "namespace", NS)
    mallory = account("mallory", "create", "get", "list", "watch", "patch", "delete")
    others = account("jane", "get", "patch")
    before = restarts()
    with without_controller():
        status, _, body = request("POST", PILOTS, pilot("a"), token=mallory)
        claim("an object of others is there", status == 201, body)
        with step("writes behind a webhook"):
            behind_a_webhook(mallory, others)
        with step("as many objects as may be (2)"), meanwhile("a namespace is filled (2)", others):
            fill(mallory)
        with step("readers"):
            readers(mallory, others)
        with step("a full namespace still lets go"):
            status, _, body = request("DELETE", f"{PILOTS}/p0", token=mallory)
            claim("an object is deleted", status == 200, body)
        claim("the server is the one that was there", restarts() == before, (before, restarts()))
        kubectl("delete", "namespace", NS, timeout=300)


if __name__ == "__main__":
    main(job)
