#!/usr/bin/env python3
"""Rewrites src/machinery/schema/kubernetes.json from Kubernetes' own OpenAPI document.

usage: scripts/kubernetes-definitions.py SWAGGER
SWAGGER is api/openapi-spec/swagger.json of the Kubernetes release whose types we use.
"""
import json
import sys
from pathlib import Path

META = "io.k8s.apimachinery.pkg.apis.meta.v1."
ROOTS = [META + name for name in (
    "APIGroup", "APIResourceList", "Condition", "DeleteOptions", "ListMeta", "MicroTime",
    "ObjectMeta", "Patch", "Status", "Time", "WatchEvent",
)] + [
    "io.k8s.api.core.v1.PodTemplateSpec",
    "io.k8s.api.core.v1.ResourceRequirements",
    "io.k8s.api.networking.v1.NetworkPolicyPeer",
    "io.k8s.apimachinery.pkg.api.resource.Quantity",
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString",
]


def references(value):
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"].rsplit("/", 1)[-1]
        for inner in value.values():
            yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    all_definitions = json.loads(Path(sys.argv[1]).read_text())["definitions"]
    found, todo = {}, list(ROOTS)
    while todo:
        name = todo.pop()
        if name in found:
            continue
        # Every group adds itself to this list; the aggregator ignores it when it compares.
        found[name] = {k: v for k, v in all_definitions[name].items()
                       if k != "x-kubernetes-group-version-kind"}
        todo.extend(references(found[name]))
    target = Path(__file__).resolve().parent.parent / "src/machinery/schema/kubernetes.json"
    target.write_text(json.dumps(found, indent=1, ensure_ascii=False, sort_keys=True) + "\n")


main()
