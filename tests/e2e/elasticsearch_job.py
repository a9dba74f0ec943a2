"""A real Elasticsearch cluster on a real Kubernetes: from `kubectl apply` over a scale-in under writes to deletion."""
import json

from bed import claim, kubectl, main, say, step
from cluster import Elasticsearch
from es import INDEX, Node, Writer
from navigator import install
from plugin import Plugin

NS = "search"
SEARCH = Elasticsearch(NS, mode=None)
DOCUMENTS = 5_000


def what_the_user_sees():
    print(kubectl("get", "elasticsearchclusters,pilots", "-n", NS, "-o", "wide"))
    status = SEARCH.status()
    claim("the cluster is Green, in its version, with its identity",
          status["health"] == "Green" and status["version"] == "7.17.29" and status.get("clusterID"), status)
    _, answer = SEARCH.ask("GET", "/_cat/master?format=json")
    claim("the Pilots name the elected master", elected() == [answer[0]["node"]], (elected(), answer))
    no_pilot_leads_at_rest()
    _, answer = SEARCH.ask("GET", "/")
    claim("it is one cluster of three", answer["cluster_uuid"] == status["clusterID"]
          and SEARCH.ask("GET", "/_cluster/health")[1]["number_of_nodes"] == 3, answer)
    service = SEARCH.get("service", f"es-{SEARCH.name}")["spec"]["clusterIP"]
    claim("clients find it through its Service", SEARCH.reach(service).ask("GET", "/")[1]["cluster_uuid"] == status["clusterID"])
    claim("the sample, which says nothing of it, is made Secure", SEARCH.spec()["security"] == {"mode": "Secure"}, SEARCH.spec())
    SEARCH.tells("Secured", "True", "Secured")
    claim("nobody is answered without a password", Node(service, SEARCH.credentials()[0]).ask("GET", "/")[0] == 401)


def no_pilot_leads_at_rest():
    """Nothing is to be done for the whole cluster, so no pilot holds the lease."""
    def resting():
        holders = [lease["spec"].get("holderIdentity") for lease in SEARCH.get("leaderleases")]
        shown = SEARCH.status().get("leader")
        return not shown and holders == [None] or str((holders, shown))
    SEARCH.wait("no pilot leads", resting)
    started = [event["regarding"]["name"] for event in SEARCH.events("ProcessStarted")]
    claim("every pilot told in an event that its database was started", set(started) == set(SEARCH.pilots()), started)


def elected(pilots=None):
    return [name for name, pilot in (pilots or SEARCH.pilots()).items() if pilot["status"]["elasticsearch"].get("electedMaster")]


def change_a_setting():
    """Every database is started anew in its pod, one at a time, and the elected master after the others, whoever that is by then."""
    pods, begun, masters = SEARCH.uids("pods"), SEARCH.processes(), {}

    def all_new():
        """Remembers, for each node that was not stopped yet, who was elected, and which others were not stopped yet either."""
        pilots = SEARCH.pilots()
        now = {name: pilot["status"].get("process", {}).get("startTime") for name, pilot in pilots.items()}
        left = [name for name in begun if now.get(name) == begun[name]]
        masters.update({name: (elected(pilots), len(left)) for name in left})
        return all(now.get(name) not in (None, begun[name]) for name in begun) or str(now)
    SEARCH.patch(config={"node.attr.disk": "ssd"})
    SEARCH.wait("other processes", all_new, 900, every=0.5)
    SEARCH.ready()
    claim("the pods are the same", SEARCH.uids("pods") == pods, pods)
    early = {name: last for name, last in masters.items() if last[0] == [name] and last[1] > 1}
    claim("no node was stopped while it was the elected master and others had their turn to come", not early and len(masters) == 3, masters)
    _, answer = SEARCH.ask("GET", "/_cat/nodeattrs?format=json&h=node,attr,value")
    set_ = [entry["node"] for entry in answer if (entry["attr"], entry["value"]) == ("disk", "ssd")]
    claim("every node has the setting", len(set_) == 3, answer)
    SEARCH.has_documents(range(DOCUMENTS))


def shrink():
    """3 → 2 while a client writes. Every shard has one copy, so each document on the third node must have moved."""
    leaver = shards_of(SEARCH.pod_name(2))
    claim("the third node has a shard of which nobody else has a copy", [int(shard["docs"]) > 100 for shard in leaver] == [True], leaver)
    with Writer(SEARCH.client(), DOCUMENTS) as writer:
        one_shard_for_each_node(True)
        SEARCH.wait("an acknowledged write", lambda: len(writer.acknowledged) > 0 or f"{writer.failures} failures")
        before = len(writer.acknowledged)
        SEARCH.scale(2)
        told = SEARCH.wait("it says why no shard moves", says_why)[0]
        claim("a shard that has nowhere to go is told with the rule", "total_shards_per_node" in told, told)
        one_shard_for_each_node(False)
        SEARCH.ready(nodes=2, deadline=600)
        SEARCH.wait("the third Pilot is gone", lambda: SEARCH.pilot(2) is None or "still there")
    say(f"    {len(writer.acknowledged)} documents acknowledged meanwhile, {writer.failures} writes refused, "
        f"the slowest took {writer.longest:.1f} s")
    claim("the client could write meanwhile", len(writer.acknowledged) > before, (before, len(writer.acknowledged)))
    wanted = writer.acknowledged | set(range(DOCUMENTS))
    shards = SEARCH.shards()
    claim("no shard is without a node", {shard["node"] for shard in shards} == {SEARCH.pod_name(0), SEARCH.pod_name(1)}, shards)
    SEARCH.has_documents(wanted, "acknowledged documents")
    claims = SEARCH.names("pvc")
    claim("the third node's claim is gone", claims == [SEARCH.claim_name(0), SEARCH.claim_name(1)], claims)
    SEARCH.wait("no exclusion is left", no_exclusion_left)


def shards_of(name):
    """A node's shards that have no second copy."""
    everyone = SEARCH.shards()
    return [shard for shard in everyone if shard["node"] == name and [other["shard"] for other in everyone].count(shard["shard"]) == 1]


def one_shard_for_each_node(only):
    """A rule that leaves the third node's shard nowhere to go."""
    SEARCH.ask("PUT", f"/{INDEX}/_settings", {"index.routing.allocation.total_shards_per_node": 1 if only else None})


def says_why():
    told = SEARCH.status()["operation"]["steps"][0].get("message", "")
    return "may not go to any other node" in told and [told] or told


def no_exclusion_left():
    settings = SEARCH.ask("GET", "/_cluster/settings?flat_settings=true")[1]
    allocation = {key: value for kind in ("persistent", "transient") for key, value in settings[kind].items()
                  if "exclude" in key and value}
    state = SEARCH.ask("GET", "/_cluster/state/metadata?filter_path=metadata.cluster_coordination")[1]
    voting = state["metadata"]["cluster_coordination"]["voting_config_exclusions"]
    return not allocation and not voting or json.dumps([allocation, voting])


def job():
    with step("install"):
        install()
    with step("kubectl apply of a sample, until three nodes are Ready"):
        kubectl("create", "namespace", NS)
        SEARCH.apply()
        SEARCH.ready(nodes=3)
    with step("what the user sees"):
        what_the_user_sees()
        plugin, nodes = Plugin(NS), [SEARCH.pod_name(at) for at in range(3)]
        plugin.looks(SEARCH.name, nodes)
        said = plugin.says(0, "shell", SEARCH.name, "--", "_cat/nodes?h=name")
        claim("kubectl navigator shell asks a node", sorted(said.split()) == nodes, said)
    with step(f"index {DOCUMENTS} documents"):
        SEARCH.ignore_disk()
        SEARCH.fill(DOCUMENTS, shards=3)
    with step("change a setting; every node restarts, one at a time"):
        change_a_setting()
    with step("kubectl patch to two nodes under writes"):
        shrink()
    with step("delete the cluster; nothing is left but its claims"):
        SEARCH.delete()
        SEARCH.is_gone(500)
        kubectl("delete", "namespace", NS, timeout=500)


if __name__ == "__main__":
    main(job)
