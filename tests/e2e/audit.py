"""Who wrote what: the audit trails of the bed's kube-apiserver and of Navigator's server, which hold each other's ids."""
import json
import re
from collections import Counter
from datetime import datetime

from bed import RUN, kubectl

TRAIL = RUN / "log/audit.jsonl"


def mark():
    """Where kube-apiserver's trail ends now. It is written before a request is answered."""
    return TRAIL.stat().st_size


def writes(since):
    """What accounts of Navigator and of its pilots have written since a mark, leases left out, in the order of their answers."""
    with open(TRAIL, "rb") as trail:
        trail.seek(since)
        events = [json.loads(line) for line in trail.read().split(b"\n")[:-1]]
    return [event for event in events if event["responseStatus"]["code"] < 300
            and event["objectRef"]["resource"] not in ("leases", "tokenreviews", "subjectaccessreviews")]


def ours():
    """Ids of the requests on the trail of Navigator's server, with who asked."""
    lines = kubectl("logs", "-n", "navigator", "deployment/navigator-apiserver", "--tail=-1").splitlines()
    events = [json.loads(line) for line in lines if line.startswith("{") and '"audit.k8s.io/' in line]
    return {event["auditID"]: event["user"]["username"] for event in events}


def is_of_navigator(event):
    return event["objectRef"].get("apiGroup") == "navigator.jetstack.io"


def account(event):
    """Who asked, without the cluster's name."""
    user = event["user"]["username"].removeprefix("system:serviceaccount:")
    return "controller" if user == "navigator:navigator-controller" else "server" if user == "navigator:navigator-apiserver" else "pilot"


def resource(event):
    of = event["objectRef"]
    return "/".join(part for part in (of["resource"], of.get("subresource")) if part)


def table(events):
    """How many writes of each kind, as lines."""
    found = Counter((account(event), event["verb"], resource(event)) for event in events)
    return [f"{number:5d}  {who:10s} {verb:8s} {what}" for (who, verb, what), number in sorted(found.items())]


def reign(event):
    """Which reign of the controller wrote this; None for what is none's."""
    found = re.search(r"reign/(\d+)", event.get("userAgent", ""))
    return int(found[1]) if found and account(event) == "controller" else None


def when(event):
    """When it was received, in seconds of the epoch."""
    return datetime.fromisoformat(event["requestReceivedTimestamp"]).timestamp()
