"""Edits of an Elasticsearch that its people did not think through, and take back or correct: roles, a switch while a pool leaves, a keystore, replicas by themselves.

MISTAKES names some of them, and MISTAKES_SECONDS is how long each is watched at most. CI has a short form; all of it is `make e2e-mistakes`.
"""
import json
import os
import time

from bed import Failed, claim, kubectl, main, say, step
from cluster import Elasticsearch
from es import Client
from mistakes import all_is_said, heals, is_never_told_to_give_up
from navigator import install

NS = "mistakes-es"
OF = os.environ.get("MISTAKES", "roles undone switch keystore replicas").split()
INDEX, DOCUMENTS = "kept", 500
KEYSTORE = "/usr/share/elasticsearch/config/elasticsearch.keystore"


def masters(cluster):
    """Names of the nodes whose votes count."""
    state = cluster.ask("GET", "/_cluster/state?filter_path=metadata.cluster_coordination,nodes")[1]
    names = {uid: node["name"] for uid, node in state["nodes"].items()}
    return sorted(names.get(uid, uid) for uid in state["metadata"]["cluster_coordination"]["last_committed_config"])


def pooled(cluster, **pools):
    """A manifest of pools: how many nodes with which roles."""
    thing = cluster.pools(pools)
    for pool in thing["spec"]["nodePools"]:
        pool["replicas"], pool["roles"] = pools[pool["name"]]
    return thing


def indexed(cluster, **settings):
    cluster.ignore_disk()
    made = cluster.ask("PUT", f"/{INDEX}", {"settings": {"number_of_shards": 3, **settings}})
    claim("the index is made", made[0] == 200, made)


def under_client(cluster, act):
    """A client writes and reads while something is done; the cluster is never Red, and serves every request."""
    with Client(cluster.addresses(), INDEX) as client:
        act()
    say(f"    {client.figures()}")
    claim("it was never red", "red" not in client.seen, client.seen)
    claim("no request failed after one retry", client.done > 20 and not client.failed, client.failed[:5])
    missing = client.missing()
    claim(f"all {len(client.acknowledged)} documents are there", not missing, missing[:10])


def blocked(cluster, *predicates, deadline=300):
    """Waits until one of these rules holds a step; returns what is said of it."""
    def check():
        found = cluster.status().get("operation", {}).get("blockedBy", [])
        return [one for one in found if one["predicate"] in predicates] or json.dumps(cluster.status())
    found = cluster.wait(f"{predicates} to hold", check, deadline)[0]
    say(f"    {found['predicate']}: {found.get('message')}; {found.get('hint')}")
    return found


BOTH, DATA, MASTER = ["master", "data"], ["data"], ["master"]


def roles():
    """Pool a has two of three votes and loses the role, while three new masters come in the same edit; then all of that is taken back in one edit."""
    three = Elasticsearch(NS, "roles")
    before = pooled(three, a=(2, BOTH), b=(1, BOTH))
    with step("an Elasticsearch of three masters in two pools"):
        three.apply(before)
        three.ready(nodes=3, deadline=900)
        indexed(three, number_of_replicas=1)

    def taken_off():
        begun = time.monotonic()
        three.apply(pooled(three, a=(2, DATA), b=(1, BOTH), m=(3, MASTER)))
        three.ready(nodes=6, deadline=1500)
        say(f"    Ready after {time.monotonic() - begun:.0f} s; votes: {masters(three)}")
        claim("no node of pool a has a vote", not [name for name in masters(three) if "-roles-a-" in name], masters(three))

    def put_back():
        begun = time.monotonic()
        three.apply(before)
        three.ready(nodes=3, deadline=1500)
        say(f"    Ready after {time.monotonic() - begun:.0f} s; votes: {masters(three)}")
        claim("each of the three has a vote", len(masters(three)) == 3, masters(three))
    with step("one edit: role master off pool a, and a pool of three masters"):
        under_client(three, taken_off)
    with step("one edit takes both back"):
        under_client(three, put_back)
    three.delete()
    three.pods_are_gone(300)


def undone():
    """The only pool of masters loses the role, with no other: held by a rule; taken back, it is as before. And two of three votes, with nothing added."""
    three = Elasticsearch(NS, "undone")
    before = pooled(three, a=(2, BOTH), b=(1, BOTH))
    with step("an Elasticsearch of three masters in two pools"):
        three.apply(before)
        three.ready(nodes=3, deadline=900)
        indexed(three, number_of_replicas=1)

    def alone():
        begun = time.monotonic()
        three.apply(pooled(three, a=(2, DATA), b=(1, BOTH)))
        three.ready(nodes=3, deadline=900)
        say(f"    Ready after {time.monotonic() - begun:.0f} s; votes: {masters(three)}")
        claim("pool b alone has a vote", masters(three) == [three.node("b")], masters(three))

    def back_midway():
        begun = time.monotonic()
        three.apply(before)
        three.ready(nodes=3, deadline=900)
        say(f"    Ready after {time.monotonic() - begun:.0f} s; votes: {masters(three)}")
        three.apply(pooled(three, a=(2, DATA), b=(1, BOTH)))
        time.sleep(15)
        begun = time.monotonic()
        three.apply(before)
        three.ready(nodes=3, deadline=900)
        say(f"    taken back in the middle of it: Ready after {time.monotonic() - begun:.0f} s; votes: {masters(three)}")
        claim("each of the three has a vote", len(masters(three)) == 3, masters(three))
    with step("role master off two of three votes, and nothing else"):
        under_client(three, alone)
    with step("put back; then the same again, taken back in its middle"):
        under_client(three, back_midway)
    three.delete()
    three.pods_are_gone(300)


def switch():
    """One edit removes a pool that may not leave, sets mode Secure, and skips KeepsServing."""
    name = "switch"
    nodes = Elasticsearch(NS, name)
    with step("an Elasticsearch of two pools, and an index that keeps pool b from leaving"):
        nodes.apply(pooled(nodes, a=(2, BOTH), b=(1, BOTH)))
        nodes.ready(nodes=3, deadline=900)
        indexed(nodes, number_of_replicas=2)
        nodes.client().ask("PUT", f"/{INDEX}/_doc/1?refresh=true", {"number": 1})
    with step("one edit: b out, mode Secure, KeepsServing skipped: the pool is named, and the cluster serves on"):
        thing = pooled(nodes, a=(2, BOTH))
        thing["spec"]["security"] = {"mode": "Secure"}
        thing["spec"]["updateStrategy"] = {"skipPredicates": ["KeepsServing"]}

        def applied():
            say(f"    {nodes.apply(thing).strip()}")
            told = blocked(nodes, "CopiesElsewhere")
            claim("it names the node or the index", INDEX in told["message"] or nodes.node("b") in told["message"], told)
            time.sleep(60)
            status = nodes.status()
            claim("all three serve on", status.get("readyReplicas") == 3 and status.get("phase") != "Stopped", json.dumps(status))
        under_client(nodes, applied)
    with step("the index lets it go: b leaves, then the switch, and the document is there"):
        begun = time.monotonic()
        nodes.ask("PUT", f"/{INDEX}/_settings", {"index.number_of_replicas": 1})
        nodes.wait("pool b is gone", lambda: nodes.get("pilot", nodes.node("b")) is None or "still there", 600)
        say(f"    pool b left after {time.monotonic() - begun:.0f} s")
        nodes.mode = None
        nodes.ready(nodes=2, deadline=900)
        nodes.tells("Secured", "True", deadline=300)
        say(f"    Ready and Secured after {time.monotonic() - begun:.0f} s")
        code, found = nodes.ask("GET", f"/{INDEX}/_doc/1")
        claim("the document is there, over TLS and with a login", code == 200 and found["_source"] == {"number": 1}, found)
    nodes.delete()
    nodes.pods_are_gone(300)


def keystore():
    """A keystore with a setting that Elasticsearch does not know is mounted into its only node."""
    one = Elasticsearch(NS, "keystore")
    with step("an Elasticsearch of one node, and a keystore that is made in it"):
        one.apply(one.manifest(1))
        one.ready(nodes=1, deadline=900)
        one.fill(DOCUMENTS, shards=1)
        script = ("mkdir -p /tmp/made && cd /usr/share/elasticsearch && export ES_PATH_CONF=/tmp/made ES_JAVA_OPTS=-Xmx64m && cp config/jvm.options config/log4j2.properties "
                  "/tmp/made/; bin/elasticsearch-keystore create >&2 && echo x | bin/elasticsearch-keystore add --stdin no.such.setting >&2 && "
                  "base64 -w0 /tmp/made/elasticsearch.keystore")
        made = kubectl("exec", "-n", NS, one.pod_name(), "-c", "elasticsearch", "--", "bash", "-c", script).strip().splitlines()[-1]
        kubectl("create", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "made", "namespace": NS},
                                                       "data": {"elasticsearch.keystore": made}}))
    with step("it is mounted: the setting is named, and nothing is to be given up"):
        begun = time.monotonic()
        one.patch(podTemplate={"spec": {
            "volumes": [{"name": "made", "secret": {"secretName": "made"}}],
            "containers": [{"name": "elasticsearch", "volumeMounts": [{"name": "made", "mountPath": KEYSTORE, "subPath": "elasticsearch.keystore"}]}]}})
        text = all_is_said(one, "no.such.setting", 300)
        say(f"    named after {time.monotonic() - begun:.0f} s: {text[max(0, text.find('no.such.setting') - 200):][:500]}")
        is_never_told_to_give_up(one)
        # While it is tried again, Ready says for seconds that it starts.
        one.wait("the cluster's status names the setting", lambda: "no.such.setting" in str(one.told("Ready")) or str(one.told("Ready")), 120, every=0.5)
    with step("it is taken out: Ready, and every document"):
        heals(one, lambda: one.patch(podTemplate=None), 1)
        one.has_documents(range(DOCUMENTS))
    one.delete()
    one.pods_are_gone(300)


def replicas():
    """An index that chooses its replicas by itself keeps no node from leaving."""
    two = Elasticsearch(NS, "replicas")
    with step("an Elasticsearch of two nodes, and an index of auto_expand_replicas 0-1"):
        two.apply(two.manifest(2))
        two.ready(nodes=2, deadline=900)
        indexed(two, auto_expand_replicas="0-1")
        two.ask("PUT", f"/{INDEX}/_doc/1?refresh=true", {"number": 1})
    with step("scale from 2 to 1"):
        begun = time.monotonic()
        two.scale(1)
        two.wait("its Pilot is gone", lambda: two.get("pilot", two.pod_name(1)) is None or json.dumps(two.status().get("operation")), 400)
        two.ready(nodes=1, deadline=300)
        say(f"    one node, Ready, after {time.monotonic() - begun:.0f} s")
        code, found = two.ask("GET", f"/{INDEX}/_doc/1")
        claim("the document is there", code == 200 and found["_source"] == {"number": 1}, found)
    two.delete()
    two.pods_are_gone(300)


def job():
    with step("install"):
        install()
    kubectl("create", "namespace", NS)
    faults = []
    for act in (roles, undone, switch, keystore, replicas):
        if act.__name__ not in OF:
            continue
        # One that fails keeps none from being tried.
        try:
            act()
        except Failed as error:
            say(f"    FAULT: {error}")
            faults.append(f"{act.__name__}: {error}")
    claim("each ended well", not faults, "\n".join(faults))
    kubectl("delete", "namespace", NS, timeout=500)


if __name__ == "__main__":
    main(job)
