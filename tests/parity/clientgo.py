"""client-go's own machinery on our server, through the aggregator: tests/clientgo, run with WatchList on and off.

Owns the account that it runs as, the restart that it asks for, and the judgement of the audit trail: that nothing of it was asked
as system:masters.
"""
import json
import os
import subprocess
import threading
import time

import definitions
from world import Failed, until

NAMESPACE = "clientgo"
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:{NAMESPACE}"
# Users in the group system:masters by design: kube-apiserver itself, over its loopback, and its aggregator, which asks our server whether it
# is there and what it serves. The aggregator's requests are no client's: kube-apiserver's audit trail lacks them, ours has them.
ITSELF = "system:apiserver"
AGGREGATOR = "system:kube-aggregator"
WRITING = ["get", "list", "watch", "create", "patch", "delete", "deletecollection"]
OBJECTS = [
    {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
    {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": NAMESPACE, "namespace": NAMESPACE}},
    {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": NAMESPACE, "namespace": NAMESPACE}, "rules": [
        {"apiGroups": [definitions.GROUP], "resources": ["leaderleases", "cassandraclusters"], "verbs": WRITING}]},
    {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": NAMESPACE, "namespace": NAMESPACE},
     "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": NAMESPACE},
     "subjects": [{"kind": "ServiceAccount", "name": NAMESPACE, "namespace": NAMESPACE}]},
]
# WatchList off or on, and the tests: all of them without it, then again those whose requests differ with it. client-go's detector of
# inconsistencies is on. It would call metadata as JSON inconsistent: items of a list name their kind there, and objects of a watch do not.
RUNS = [("false", "."), ("true", "Reflector|DynamicInformer|MetadataInformer|Restart")]


def work(world, binary):
    world.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": OBJECTS}))
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{NAMESPACE}/token"
    token = world.ask(path, "POST", {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}})["status"]["token"]
    config = world.kubeconfig(NAMESPACE, NAMESPACE, token=token)
    until("the account's rights", lambda: "yes" in world.kubectl(
        "auth", "can-i", "list", f"leaderleases.{definitions.GROUP}", "-n", NAMESPACE, f"--as={ACCOUNT}"))
    begun = (world.folder / "audit.log").stat().st_size
    restart, over = world.folder / "restart", threading.Event()
    threading.Thread(target=restarts, args=(world, restart, over), daemon=True).start()
    for watch_list, only in RUNS:
        env = {**os.environ, "KUBECONFIG": str(config), "RESTART": str(restart), "KUBE_FEATURE_WatchListClient": watch_list,
               "KUBE_WATCHLIST_INCONSISTENCY_DETECTOR": "true"}
        since = time.monotonic()
        done = subprocess.run([binary, "-test.v", "-test.timeout=1200s", f"-test.run={only}"], env=env, capture_output=True, text=True)
        ran = [line for line in done.stdout.splitlines() if line.startswith(("--- ", "    "))]
        print("\n".join(ran), flush=True)
        if done.returncode:
            raise Failed(f"client-go with WatchList={watch_list}:\n{done.stdout[-6000:]}{done.stderr[-6000:]}")
        world.say(f"client-go with WatchList={watch_list}: {len(ran)} tests in {time.monotonic() - since:.1f} s")
    over.set()
    trail(world, begun)


def restarts(world, asked, over):
    """Restarts our server whenever it is asked to, by a file that goes away when it is done."""
    while not over.wait(0.05):
        if asked.exists():
            world.restart_ours()
            asked.unlink()


def written(events):
    """Ids of requests that wrote something."""
    return {event["auditID"] for event in events if event["verb"] not in ("get", "list", "watch") and event["responseStatus"]["code"] < 300}


def trail(world, begun):
    """Who asked what, by kube-apiserver's audit trail since then and by ours."""
    with open(world.folder / "audit.log", "rb") as log:
        log.seek(begun)
        events = [json.loads(line) for line in log]
    masters = {event["user"]["username"] for event in events if "system:masters" in event["user"].get("groups", [])}
    if masters - {ITSELF}:
        raise Failed(f"asked as system:masters: {masters}")
    asked = [event for event in events if event["user"]["username"] == ACCOUNT]
    passed = [event for event in asked if event.get("objectRef", {}).get("apiGroup") == definitions.GROUP]
    if not passed or any("impersonatedUser" in event for event in asked):
        raise Failed(f"{len(asked)} requests of {ACCOUNT}, {len(passed)} for our kinds")
    ours = [json.loads(line) for line in (world.folder / "navigator-audit.log").read_text().splitlines()]
    # Our server knows no user of a request that comes while it starts.
    mine = [event for event in ours if event["user"].get("username") == ACCOUNT]
    masters = [event for event in ours if "system:masters" in event["user"].get("groups", [])]
    others = [event for event in masters if event["user"]["username"] != AGGREGATOR or event["verb"] != "get" or "objectRef" in event]
    theirs, known = written(passed), written(mine)
    if theirs != known or not masters or others:
        raise Failed(f"our trail: {len(known)} of {len(theirs)} writes of {ACCOUNT}; {len(masters)} as system:masters, beside discovery: {others[:3]}")
    world.say(f"{len(passed)} requests of {ACCOUNT} for our kinds; as system:masters only {len(masters)} of {AGGREGATOR} for discovery")
