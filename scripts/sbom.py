#!/usr/bin/env python3
"""sbom.py [BINARY OUT]: checks that every crate in the binary may be there (deny.toml: licences, sources, banned crates).
With BINARY and OUT it also writes OUT: what BINARY consists of, as CycloneDX 1.5 JSON.

Built from `cargo metadata` and Cargo.lock, so it needs no network. The same tree gives the same file.
"""
import hashlib
import json
import os
import re
import subprocess
import sys
import tomllib
import uuid
from datetime import datetime, timezone
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGET = "x86_64-unknown-linux-gnu"


def output(*command):
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def rust_version():
    return re.search(r"release: (\S+)", output("rustc", "-vV"))[1]


def glibc_version():
    return os.confstr("CS_GNU_LIBC_VERSION").split()[1]


def gcc_version():
    return output("gcc", "-dumpfullversion")


def jolokia():
    """Version and SHA-256 of the agent inside the binary."""
    return dict(re.findall(r"\b(version|sha256)=(\S+)", (ROOT / "scripts/jolokia.sh").read_text()))


def allowed(expression, allow):
    """Does the licence, in SPDX's notation or crates.io's older one with a slash, leave us a way that is allowed?"""
    words = re.findall(r"\(|\)|[^\s()]+", expression.replace("/", " OR "))

    def term():
        word = words.pop(0)
        if word == "(":
            holds = either()
            words.pop(0)
            return holds
        if words[:1] == ["WITH"]:
            word = f"{word} WITH {words[1]}"
            del words[:2]
        return word in allow

    def both():
        holds = term()
        while words[:1] == ["AND"]:
            words.pop(0)
            holds = term() and holds
        return holds

    def either():
        holds = both()
        while words[:1] == ["OR"]:
            words.pop(0)
            holds = both() or holds
        return holds

    return either()


def crates():
    """The root's id, and by id each crate that is in the binary or runs while it is built, and what it depends on."""
    meta = json.loads(output(os.environ.get("CARGO", "cargo"), "metadata", "--locked", "--format-version=1", f"--filter-platform={TARGET}"))
    packages = {package["id"]: package for package in meta["packages"]}
    nodes = {node["id"]: node for node in meta["resolve"]["nodes"]}
    root = meta["resolve"]["root"]
    found, waiting = {}, [(root, False)]
    while waiting:
        this, only_built_with = waiting.pop()
        package = packages[this]
        only_built_with |= any("proc-macro" in target["kind"] for target in package["targets"])
        # A crate that one path links into the binary is in it, even if another path only builds with it.
        if this in found and (only_built_with or not found[this]["built_with"]):
            continue
        edges = [(dep["pkg"], {kind["kind"] for kind in dep["dep_kinds"]}) for dep in nodes[this]["deps"]]
        edges = [(pkg, kinds) for pkg, kinds in edges if kinds - {"dev"}]
        found[this] = {"package": package, "own": this in meta["workspace_members"], "built_with": only_built_with, "needs": sorted(pkg for pkg, _ in edges)}
        waiting += [(pkg, only_built_with or None not in kinds) for pkg, kinds in edges]
    return root, found


def problems(root, found, rules):
    """What deny.toml does not allow, one line each."""
    allow, banned = set(rules["licenses"]["allow"]), {ban["crate"]: ban["reason"] for ban in rules["bans"]["deny"]}
    sources = {f"registry+{registry}" for registry in rules["sources"]["allow-registry"]}
    for this, entry in sorted(found.items()):
        package = entry["package"]
        name = f"{package['name']} {package['version']}"
        if not package["license"]:
            yield f"{name} names no licence"
        elif not allowed(package["license"], allow):
            yield f"{name} is under {package['license']}"
        if not entry["own"] and package["source"] not in sources:
            yield f"{name} comes from {package['source']}"
        if package["name"] in banned:
            yield f"{name} is banned: {banned[package['name']]}"


def component(kind, name, version, licence=None, purl=None, sha256=None, **more):
    made = {"type": kind, "bom-ref": purl or f"{name}@{version}", "name": name, "version": version}
    if licence:
        made["licenses"] = [{"expression": licence.replace("/", " OR ").replace("  ", " ")}]
    if purl:
        made["purl"] = purl
    if sha256:
        made["hashes"] = [{"alg": "SHA-256", "content": sha256}]
    return made | more


def bom(binary, root, found):
    """What the binary consists of. The jar inside it and the libraries linked into it are no crates."""
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text())
    sums = {(entry["name"], entry["version"]): entry.get("checksum") for entry in lock["package"]}
    purls = {this: f"pkg:cargo/{e['package']['name']}@{e['package']['version']}" for this, e in found.items()}
    components, depends = [], []
    for this, entry in sorted(found.items(), key=lambda item: purls[item[0]]):
        package = entry["package"]
        depends.append({"ref": purls[this], "dependsOn": [purls[pkg] for pkg in entry["needs"]]})
        if this != root:
            components.append(component(
                "library", package["name"], package["version"], package["license"], purls[this],
                sums[package["name"], package["version"]], scope="excluded" if entry["built_with"] else "required",
                externalReferences=[{"type": "vcs", "url": package["repository"]}] if package["repository"] else []))
    agent = jolokia()
    components += [
        component("library", "jolokia-agent-jvm", agent["version"], "Apache-2.0",
                  f"pkg:maven/org.jolokia/jolokia-agent-jvm@{agent['version']}?classifier=javaagent", agent["sha256"], scope="required"),
        component("library", "rust-std", rust_version(), "MIT OR Apache-2.0", scope="required"),
        component("library", "glibc", glibc_version(), "LGPL-2.1-or-later", scope="required"),
        component("library", "libgcc", gcc_version(), "GPL-3.0-or-later WITH GCC-exception-3.1", scope="required"),
    ]
    own = found[root]["package"]
    when = int(os.environ.get("SOURCE_DATE_EPOCH") or output("git", "log", "-1", "--format=%ct"))
    made = {
        "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(when, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": component("application", own["name"], own["version"], own["license"], purls[root],
                                   hashlib.sha256(Path(binary).read_bytes()).hexdigest()),
        },
        "components": components, "dependencies": depends,
    }
    made["serialNumber"] = f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(made, sort_keys=True))}"
    return made


def main():
    root, found = crates()
    told = list(problems(root, found, tomllib.loads((ROOT / "deny.toml").read_text())))
    for line in told:
        print(f"deny.toml: {line}", file=sys.stderr)
    if told:
        sys.exit(1)
    print(f"{len(found)} crates: every licence and source is allowed by deny.toml, and none is banned")
    print("NOT looked up here: yanked versions. `make deny` does, and needs github.com")
    if len(sys.argv) == 3:
        binary, out = sys.argv[1:]
        Path(out).write_text(json.dumps(bom(binary, root, found), indent=1) + "\n")
        print(f"{out}: {Path(out).stat().st_size // 1024} KiB")


if __name__ == "__main__":
    main()
