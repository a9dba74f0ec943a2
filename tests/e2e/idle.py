"""Clusters whose pods never start, since no registry has their image: for what is said of objects alone."""
from bed import get
from cluster import Cassandra


def manifest(cluster):
    return cluster.manifest(1, image={"repository": "registry.invalid/cassandra", "tag": "none"})


def made(name, namespace):
    cluster = Cassandra(namespace, name)
    cluster.apply(manifest(cluster))
    cluster.wait("its pod", lambda: cluster.pod(0))
    return cluster


def is_gone(cluster):
    """Waits until nothing bears its label."""
    kinds = "statefulset,pod,service,serviceaccount,role,rolebinding,pdb,pilots"
    mark = f"navigator.jetstack.io/cassandra-cluster-name={cluster.name}"

    def left():
        return [f"{thing['kind']}/{thing['metadata']['name']}" for thing in get(kinds, "-n", cluster.namespace, "-l", mark)]
    cluster.wait("nothing left of it", lambda: left() == [] or str(left()))
