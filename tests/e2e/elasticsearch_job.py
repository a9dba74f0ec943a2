"""A real Elasticsearch cluster on a real Kubernetes: from `kubectl apply` over a scale-in under writes to deletion."""
import json

from bed import ROOT, claim, condition_is, get, kubectl, main, nodes_ready, say, step, wait
from es import INDEX, Node, Writer
from navigator import install

NS, NAME = "search", "small"
SET = f"es-{NAME}-a"
CLUSTER = ("elasticsearchcluster", "-n", NS, NAME)
DOCUMENTS = 5_000


def node(ordinal):
    return Node(get("pod", "-n", NS, f"{SET}-{ordinal}")["status"]["podIP"])


def pilots():
    return {pilot["metadata"]["name"]: pilot for pilot in get("pilots", "-n", NS)}


def ready(deadline=400):
    wait(f"{NAME} Ready", condition_is("Ready", "True", *CLUSTER), deadline)


def scale(replicas):
    kubectl("patch", *CLUSTER, "--type", "json",
            "-p", json.dumps([{"op": "replace", "path": "/spec/nodePools/0/replicas", "value": replicas}]))


def what_the_user_sees():
    print(kubectl("get", "elasticsearchclusters,pilots", "-n", NS, "-o", "wide"))
    status = get(*CLUSTER)["status"]
    claim("the cluster is Green, in its version, with its identity",
          status["health"] == "Green" and status["version"] == "7.17.29" and status.get("clusterID"), status)
    _, answer = node(0).ask("GET", "/_cat/master?format=json")
    claim("the Pilots name the elected master", elected() == [answer[0]["node"]], (elected(), answer))
    one_pilot_leads()
    _, answer = node(0).ask("GET", "/")
    claim("it is one cluster of three", answer["cluster_uuid"] == status["clusterID"]
          and node(0).ask("GET", "/_cluster/health")[1]["number_of_nodes"] == 3, answer)
    service = get("service", "-n", NS, f"es-{NAME}")["spec"]["clusterIP"]
    claim("clients find it through its Service", Node(service).ask("GET", "/")[1]["cluster_uuid"] == status["clusterID"])


def one_pilot_leads():
    """It has the lease, the cluster's status names it, and it said so."""
    def leader():
        holders = [lease["spec"].get("holderIdentity") for lease in get("leaderleases", "-n", NS)]
        shown = get(*CLUSTER)["status"].get("leader")
        told = {(event["regarding"]["kind"], event["reason"], event["note"]) for event in get("events.events.k8s.io", "-n", NS)}
        said = ("LeaderLease", "LeaderElection", f"{shown} became leader") in told
        return shown in pilots() and holders == [shown] and said or str((holders, shown, said))
    wait("one pilot leads, and says so", leader, 90)
    started = [event["regarding"]["name"] for event in get("events.events.k8s.io", "-n", NS) if event["reason"] == "ProcessStarted"]
    claim("every pilot told in an event that its database was started", set(started) == set(pilots()), started)


def elected():
    return [name for name, pilot in pilots().items() if pilot["status"]["elasticsearch"].get("electedMaster")]


def change_a_setting():
    """Every pod is replaced, one at a time, the elected master's last."""
    old, last = {pod["metadata"]["uid"] for pod in get("pods", "-n", NS)}, elected()
    kubectl("patch", *CLUSTER, "--type", "merge", "-p", json.dumps({"spec": {"config": {"node.attr.disk": "ssd"}}}))

    def all_new():
        pods = get("pods", "-n", NS)
        return len(pods) == 3 and not old & {pod["metadata"]["uid"] for pod in pods} or str(len(pods))
    wait("three other pods", all_new, 300)
    ready()
    order = [pod["metadata"]["name"] for pod in sorted(get("pods", "-n", NS), key=lambda pod: pod["metadata"]["creationTimestamp"])]
    claim("the elected master's pod was replaced last", order[-1:] == last, (order, last))
    _, answer = node(0).ask("GET", "/_cat/nodeattrs?format=json&h=node,attr,value")
    set_ = [entry["node"] for entry in answer if (entry["attr"], entry["value"]) == ("disk", "ssd")]
    claim("every node has the setting", len(set_) == 3, answer)
    found = node(0).read(range(DOCUMENTS))
    claim(f"all {DOCUMENTS} documents are there", len(found) == DOCUMENTS, len(found))


def shrink():
    """3 → 2 while a client writes. Every shard has one copy, so each document on the third node must have moved."""
    leaver = shards_of(f"{SET}-2")
    claim("the third node has a shard of which nobody else has a copy", [int(shard["docs"]) > 100 for shard in leaver] == [True], leaver)
    with Writer(node(0), DOCUMENTS) as writer:
        one_shard_for_each_node(True)
        scale(2)
        told = wait("it says why no shard moves", says_why, 120)[0]
        claim("a shard that has nowhere to go is told with the rule", "total_shards_per_node" in told, told)
        one_shard_for_each_node(False)
        wait("2/2 nodes", nodes_ready(CLUSTER, 2), 300)
        ready()
        wait("the third Pilot is gone", lambda: f"{SET}-2" not in pilots() or "still there", 60)
    say(f"    {len(writer.acknowledged)} documents acknowledged meanwhile, {writer.failures} writes refused, "
        f"the slowest took {writer.longest:.1f} s")
    claim("the client could write meanwhile", len(writer.acknowledged) > 100, len(writer.acknowledged))
    wanted = writer.acknowledged | set(range(DOCUMENTS))
    claim("no shard is without a node", {shard["node"] for shard in shards()} == {f"{SET}-0", f"{SET}-1"}, shards())
    missing = wanted - node(0).read(wanted)
    claim(f"all {len(wanted)} acknowledged documents are there", not missing, sorted(missing)[:10])
    claims = sorted(entry["metadata"]["name"] for entry in get("pvc", "-n", NS))
    claim("the third node's claim is gone", claims == [f"elasticsearch-data-{SET}-0", f"elasticsearch-data-{SET}-1"], claims)
    wait("no exclusion is left", no_exclusion_left, 60)


def shards():
    node(0).ask("POST", f"/{INDEX}/_refresh")
    return node(0).ask("GET", f"/_cat/shards/{INDEX}?format=json&h=shard,prirep,state,docs,node")[1]


def shards_of(name):
    """A node's shards that have no second copy."""
    everyone = shards()
    return [shard for shard in everyone if shard["node"] == name and [other["shard"] for other in everyone].count(shard["shard"]) == 1]


def one_shard_for_each_node(only):
    """A rule that leaves the third node's shard nowhere to go."""
    node(0).ask("PUT", f"/{INDEX}/_settings", {"index.routing.allocation.total_shards_per_node": 1 if only else None})


def says_why():
    told = get(*CLUSTER)["status"]["operation"]["steps"][0].get("message", "")
    return "may not go to any other node" in told and [told] or told


def no_exclusion_left():
    settings = node(0).ask("GET", "/_cluster/settings?flat_settings=true")[1]
    allocation = {key: value for kind in ("persistent", "transient") for key, value in settings[kind].items()
                  if "exclude" in key and value}
    state = node(0).ask("GET", "/_cluster/state/metadata?filter_path=metadata.cluster_coordination")[1]
    voting = state["metadata"]["cluster_coordination"]["voting_config_exclusions"]
    return not allocation and not voting or json.dumps([allocation, voting])


def leftovers():
    kinds = "statefulset,pod,service,serviceaccount,role,rolebinding,pdb,pilots,elasticsearchclusters"
    return [f"{thing['kind']}/{thing['metadata']['name']}" for thing in get(kinds, "-n", NS)
            if thing["metadata"]["name"] != "default"]


def job():
    with step("install"):
        install()
    with step("kubectl apply of a sample, until three nodes are Ready"):
        kubectl("create", "namespace", NS)
        kubectl("apply", "-n", NS, "-f", ROOT / "deploy/samples/elasticsearch-small.yaml")
        wait("3/3 nodes", nodes_ready(CLUSTER, 3), 400)
        ready()
    with step("what the user sees"):
        what_the_user_sees()
    with step(f"index {DOCUMENTS} documents"):
        # The bed's volumes lie on the machine's one disk, however full that is: nothing would move on a full one.
        node(0).ask("PUT", "/_cluster/settings", {"persistent": {"cluster.routing.allocation.disk.threshold_enabled": False}})
        claim("the index is made", node(0).make_index(3)[0] == 200)
        done = set()
        for first in range(0, DOCUMENTS, 500):
            done |= node(0).write(first, 500)
        claim(f"{DOCUMENTS} documents are acknowledged", len(done) == DOCUMENTS, len(done))
    with step("change a setting; every node restarts, one at a time"):
        change_a_setting()
    with step("kubectl patch to two nodes under writes"):
        shrink()
    with step("delete the cluster; nothing is left but its claims"):
        kubectl("delete", *CLUSTER, timeout=400)
        wait("nothing left", lambda: leftovers() == [] or str(leftovers()), 300)
        kubectl("delete", "namespace", NS, timeout=300)


if __name__ == "__main__":
    main(job)
