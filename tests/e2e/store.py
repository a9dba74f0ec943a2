"""The volume of the embedded store: copied, emptied, put back, while no server has it open; and what the API says of it."""
import os
import shutil
from pathlib import Path

from bed import get, kubectl, wait
from navigator import servers
from raw import request

RECORD = ("configmap", "-n", "navigator", "navigator-store")
CLUSTERS = "/apis/navigator.jetstack.io/v1beta1/cassandraclusters"


def volume():
    claimed = get("pvc", "-n", "navigator", "navigator-apiserver")
    return Path(get("pv", claimed["spec"]["volumeName"])["spec"]["local"]["path"])


def taken(name):
    """A copy of the store beside its volume, of a moment at which no server has it open. Leaves none running."""
    servers(0)
    copy = volume().parent / name
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(volume(), copy)
    return copy


def replaced(copy=None):
    """Starts a server on this copy, or on nothing."""
    servers(0)
    place = volume()
    for entry in list(place.iterdir()):
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    if copy:
        shutil.copytree(copy, place, dirs_exist_ok=True)
        for entry in [place, *place.rglob("*")]:
            os.chown(entry, 65532, 65532)
    servers(1)


def refuses(words):
    """Waits until every request is answered 503 with these words, and returns the answer."""
    def check():
        status, _, body = request("GET", CLUSTERS)
        message = body.get("message", "") if isinstance(body, dict) else str(body)
        return [message] if status == 503 and words in message else f"{status}: {message}"
    return wait("a server that refuses", check, 400)[0]


def serves():
    def check():
        status, _, body = request("GET", CLUSTERS)
        return status == 200 or f"{status}: {body}"
    wait("a server that serves", check, 400)


def accepted(identity):
    """A person accepts the store of this id as it is."""
    kubectl("annotate", "--overwrite", *RECORD, f"navigator.jetstack.io/accept-store={identity}")
    serves()


def taken_up(identity):
    """Waits until the controller serves the store of this id. It ends when another store is served, and notices that after a while."""
    def check():
        log = kubectl("logs", "-n", "navigator", "deployment/navigator-controller", check=False).stdout
        return f'"store":"{identity}"' in log or log[-300:] or "no log"
    wait("a controller of this store", check, 400)


def identity():
    """Of the store on record."""
    return get(*RECORD)["data"]["id"]
