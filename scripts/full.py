#!/usr/bin/env python3
"""full.py [PART ...]: shows at length what CI shows in short, in parts of at most half an hour. Writes what became of each part into docs/tested.md, as soon
as it ended; rows of other parts stay as they are. A part that fails ends nothing but itself.

A run that was interrupted goes on: without names, the parts are left out that passed on this commit. With --table it only writes the table anew: a row
for each part that is, none for parts that are gone, and in front what failed and what did not run yet. --list prints each part with its command.
"""
import json
import math
import re
import subprocess
import sys
from dataclasses import dataclass
from datetime import datetime, timezone

from steps import ROOT, Run, Step
from supervisor import LEFT_OUT, PASSED, STOPPED

LOGS, PAGE, STATE = ROOT / ".cache/full", ROOT / "docs/tested.md", ROOT / ".cache/full/passed.json"
HEAD = "| part | what it shows | commit | date | minutes | outcome |\n|---|---|---|---|---|---|\n"
NOT_RUN = "not run yet"
# Real databases: one part on the test bed and one part with plain processes may run side by side.
BED, PLAIN = frozenset({"bed"}), frozenset({"plain"})


@dataclass(frozen=True)
class Part:
    """What it shows, its command, and what it needs, as a step does. `minutes` is its limit; it takes half an hour at most."""

    shows: str
    command: str
    cores: float
    memory: float
    alone: frozenset
    minutes: float = 75


def bed(shows, target):
    """On the test bed, with the shipped image."""
    return Part(f"{shows}, on the shipped image", f"make {target} TRIED=release", 1, 9, BED)


def databases(shows, scenarios):
    return Part(f"{shows}; plain processes", f'make test-databases-full SCENARIOS="{scenarios}"', 1, 9, PLAIN)


def local(shows, target):
    return Part(shows, f"make {target}", 1, 9, PLAIN)


def rest(shows, command, cores=1.0, memory=2):
    return Part(shows, command, cores, memory, frozenset())


PARTS = {
    "shipped": Part("what is shipped: built, at most as large as it may be, and in charge of real clusters on one machine", "make shipped", 2, 9,
                    BED | PLAIN, 120),
    "e2e-clusters": bed("CI's jobs of what clusters live through, on Kubernetes", "e2e BEDS=e2e-clusters"),
    "e2e-installs": bed("CI's jobs of Navigator's own installation, on Kubernetes", "e2e BEDS=e2e-installs"),
    "upgrade": bed("an older Navigator becomes this one and goes back, under a running Cassandra", "e2e-upgrade"),
    "guides": bed("README's block for Kubernetes, and the guides of machines, Cassandra, Elasticsearch, hardening and migration, as typed", "e2e-guides"),
    "collector-early": bed("Kubernetes' garbage collector deletes nothing, at the first five moments at which the API goes", "e2e-collector MOMENTS=41,45,50,55,61"),
    "collector-late": bed("Kubernetes' garbage collector deletes nothing, at five later moments at which the API goes", "e2e-collector MOMENTS=67,73,79,86,93"),
    "scenarios": bed("what once gave way with databases on Kubernetes", "e2e-scenarios"),
    "drains": bed("machines are drained without pause under clients of Cassandra and Elasticsearch, and one is emptied by the plugin", "e2e-drains DRAIN_SECONDS=180"),
    "cordons-early": bed("ten times a machine that holds all nodes of a Cassandra and an Elasticsearch is drained by the plugin, and taken back, under clients, and no second "
                         "node goes", 'e2e-cordons CORDON_OF=three CORDON_RUNS=10'),
    "cordons-late": bed("the same ten times more", 'e2e-cordons CORDON_OF=three CORDON_RUNS=10'),
    "cordons-datacenters": bed("the same five times with a Cassandra of two datacenters", "e2e-cordons CORDON_OF=datacenters CORDON_RUNS=20"),
    "restarts": bed("three nodes of each database are restarted five times where two may be away, under clients, and the second one waits",
                    "e2e-cordons CORDON_OF=restarts CORDON_RUNS=20"),
    "restarts-datacenters": bed("the same five times with a Cassandra of two datacenters, and two go together, one of each",
                                "e2e-cordons CORDON_OF=restarts-datacenters CORDON_RUNS=20"),
    "lost": bed("a node of Cassandra, and two masters of Elasticsearch, are lost for good, given up and come back", "e2e-lost"),
    "rungs-cassandra": bed("encryption and logins are turned on and off under clients of Cassandra, round by round", "e2e-rungs RUNGS=cassandra"),
    "rungs-elasticsearch": bed("encryption and logins are turned on and off in Elasticsearch, by one stop", "e2e-rungs RUNGS=elasticsearch"),
    "edits": bed("what people ask of clusters and take back: departures, a stop, a pool; under clients", "e2e-edits"),
    "mistakes": bed("wrong edits of clusters are corrected or taken back: roles, a switch while a pool leaves, a version, settings, a keystore", "e2e-mistakes"),
    "halfway": bed("a node of Cassandra is lost in the middle of an upgrade to the next major version, given up, and the upgrade ends: of three nodes an older one and the "
                   "newer one", 'e2e-halfway HALFWAY="older newer"'),
    "halfway-six": bed("the same with an older one of six nodes", "e2e-halfway HALFWAY=six"),
    "restored": bed("a namespace with a Cassandra and an Elasticsearch is deleted, and put back from a copy of its objects", "e2e-restored"),
    "strangers": bed("a Secret of a stranger that lies there before its Cassandra is not used, and a user that is taken out may do nothing on an open connection",
                     "e2e-strangers"),
    "expiry": bed("the controller is away until certificates of ten minutes have ended: no database ends, and all nodes serve again when it is back", "e2e-expiry"),
    "refusals": bed("pods that a quota or Pod Security refuses are told of within a minute", "e2e-refusals"),
    "storage": bed("volumes of Cassandra grow under a client, and a full one holds its node until it has grown", "e2e-storage"),
    "leader": bed("what the controller writes, that one alone writes when the leader is killed or stopped, and that a join outlives kills", "e2e-leader"),
    "runner": bed("the bed's real machine goes to the next minor version by kubeadm and its runner, killed at each step, and back where the new kubelet does not start",
                  "e2e-runner"),
    "machines": bed("five hollow machines go to the next minor version while the coordinator is killed at every change and databases serve, and their own machine "
                    "is rebooted", "e2e-machines"),
    "load": bed("what somebody with few rights can send through kube-apiserver stops nobody", "e2e-load"),
    "hostile-objects": rest("500 large objects of each of seven kinds with our label end no controller, and 30 clusters of others are made meanwhile", "make test-hostile-objects", 1.5, 4),
    "renewals": local("certificates of ten minutes are renewed three times, and both CAs replaced, in four releases of the databases, under clients", "test-renewals"),
    "shared-ring": local("a ring of two clusters with CAs of their own is encrypted between its nodes rung by rung, gets another CA on one side, is opened again, "
                         "and asks for logins; a third cluster joins, secure from its first moment, and leaves with its logins", "test-shared-ring"),
    "taken-over": local("a ring whose people made its logins becomes one whose logins are Navigator's, under a client of theirs", "test-taken-over"),
    "secure-upgrade": local("three nodes of each database, secured, go to the next major version one by one under a client with a role of the spec",
                            "test-secure-upgrade"),
    "quickstart": local("the quick start as typed in a clean clone, with a program that is compiled in it", "test-quickstart-full"),
    "databases-cassandra-life": databases("rings are founded, stopped, killed and made again on what is left of their volumes",
                                          "cassandra-life cassandra-rounds cassandra-kept"),
    "databases-cassandra-leaving": databases("nodes of Cassandra leave, are cut off as they leave, and stay where that would lose rows",
                                             "cassandra-leaving cassandra-space cassandra-unheard"),
    "databases-cassandra-joins": databases("joins of Cassandra are cut off, and a disk is full", "cassandra-joins cassandra-full"),
    "databases-cassandra-lost": databases("nodes of Cassandra are lost and replaced, and deleted rows stay deleted",
                                          "cassandra-forgotten cassandra-two-lost cassandra-cleanup"),
    "databases-cassandra-secure": databases("secured rings of two releases, their roles and certificates",
                                            "cassandra-secure cassandra-secure-whole cassandra-secure-4.1 cassandra-login"),
    "databases-faults": databases("a node comes back from every fault, of three that are started at once one founds, and an API is away for minutes",
                                  "cassandra-faults bootstraps api-away"),
    "databases-versions": databases("every version that runs, and the way from each to the next",
                                    "cassandra-upgrade cassandra-older elasticsearch-upgrade elasticsearch-5.6 elasticsearch-6.8 elasticsearch-7.17 "
                                    "elasticsearch-8.19 elasticsearch-9.5"),
    "databases-elasticsearch": databases("Elasticsearch is founded 20 times, made again, secured, hung, badly configured, with plugins and other roles",
                                         "elasticsearch-founding-20 elasticsearch-kept elasticsearch-secure elasticsearch-secure-8.19 elasticsearch-trouble "
                                         "elasticsearch-space elasticsearch-roles-7.17 elasticsearch-roles-8.19 elasticsearch-plugins-7.17 "
                                         "elasticsearch-plugins-5.6 elasticsearch-hang-7.17 elasticsearch-hang-8.19"),
    "databases-elasticsearch-lost": databases("masters of Elasticsearch hang, are cut off and lost, and departures are cut off in every way",
                                              "elasticsearch-quorum-7.17 elasticsearch-quorum-8.19 elasticsearch-quorum-9.5 elasticsearch-split "
                                              "elasticsearch-master elasticsearch-unheard elasticsearch-leaving"),
    "histories-early": rest("50 histories of API servers that break", "make test-history HISTORY_SEED=1..50", 1.5, 4),
    "histories-late": rest("50 other histories of API servers that break", "make test-history HISTORY_SEED=51..100", 1.5, 4),
    "model": rest("the states of small clusters, searched at length for traps", "make model", 2, 6),
    "parity": rest("kubectl and client-go are answered as by a CRD, line by line", "make test-parity", 1.5, 4),
    "growth": rest("volumes grow, and a quota refuses pods, before a real kube-apiserver", "make test-growth", 1.0, 3),
    "at-rest": rest("pilots at rest send at most 150 requests an hour", "make test-at-rest", 0.5, 2),
    "compare-inits": rest("our init, tini and dumb-init in the cases that a database needs", "make compare-inits"),
    "kill-store": rest("the embedded store, killed 1000 times and without power 200 times", "make kill-store", 1.5, 4),
    "full-stores": rest("each store, full to its bound, is served by ten servers in a row in 256 MiB", "make full-stores", 1.0, 4),
    "full-registries": rest("500 namespaces get the credentials of ten registries, and nothing is written in a minute at rest", "make full-registries", 1.5, 4),
    "fuzz": rest("decoding of damaged manifests for 10 minutes", "make fuzz FUZZ=600"),
    "monitoring": rest("alerts and dashboards by promtool of the newest Prometheus", "make test-monitoring-newest"),
    "planted": rest("that the tests catch each of the faults that are built in, one at a time", "make planted", math.inf, 6),
}


def git(*words):
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def commit():
    """What is checked out, with a + where files beside the record of tests differ from it."""
    changed = git("status", "--porcelain", "--", ".", ":!docs/tested.md", ":!docs/test-databases.md")
    return git("rev-parse", "--short", "HEAD") + ("+" if changed else "")


def rows(text):
    """Of each part on the page, what its row says: what it showed, commit, date, minutes, outcome."""
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in text.partition(HEAD)[2].partition("\n\n")[0].splitlines()]
    return {row[0].strip("`"): row[1:] for row in cells}


def table(ran):
    """Every part: what failed, what did not run yet, the rest; each in the order of PARTS. What a part showed when it ran stays, as long as it did not run again."""
    ends = {part: ran[part] if part in ran and ran[part][-1] != NOT_RUN else [one.shows, "", "", "", NOT_RUN] for part, one in PARTS.items()}
    order = sorted(PARTS, key=lambda part: (ends[part][-1] == PASSED) * 2 + (ends[part][-1] == NOT_RUN))
    return [" ".join([f"| `{part}` |", *(f"{cell} |" if cell else "|" for cell in ends[part])]) for part in order]


def write(changed):
    text = PAGE.read_text()
    before, head, rest_of_page = text.partition(HEAD)
    if not head:
        sys.exit(f"full.py: {PAGE} has no table that begins with\n{HEAD}")
    PAGE.write_text(before + head + "\n".join(table(rows(text) | changed)) + "\n\n" + rest_of_page.partition("\n\n")[2])


def passed_parts(of):
    """Parts that passed on this commit; on none that is not committed."""
    try:
        return set(json.loads(STATE.read_text())[of])
    except (OSError, ValueError, KeyError):
        return set()


def keep(ended, of):
    """One that was stopped or left out shows nothing, so its row stays."""
    if ended.outcome in (STOPPED, LEFT_OUT):
        return
    write({ended.name: [PARTS[ended.name].shows, of, f"{datetime.now(timezone.utc):%Y-%m-%d}", f"{ended.took / 60:.0f}", ended.outcome]})
    if not of.endswith("+"):
        parts = passed_parts(of) - {ended.name} | ({ended.name} if ended.outcome == PASSED else set())
        written = STATE.with_suffix(".new")
        written.write_text(json.dumps({of: sorted(parts)}))
        written.rename(STATE)


def chosen(names, of):
    """These parts; where none is named, those that did not pass on this commit."""
    if unknown := [name for name in names if name not in PARTS]:
        sys.exit(f"full.py: there is no part {' '.join(unknown)}: {' '.join(PARTS)}")
    return [name for name in PARTS if name in names] if names else [name for name in PARTS if name not in passed_parts(of)]


def main():
    if sys.argv[1:] == ["--table"]:
        return write({})
    if sys.argv[1:] == ["--list"]:
        return print(*(f"{name}\t{part.command}" for name, part in PARTS.items()), sep="\n")
    of = commit()
    names = chosen(sys.argv[1:], of)
    if not sys.argv[1:] and len(names) < len(PARTS):
        print(f"{len(PARTS) - len(names)} parts passed on {of} already; PARTS=… runs them again")
    steps = [Step(name, part.command, minutes=part.minutes, cores=part.cores, memory=part.memory, alone=part.alone)
             for name, part in PARTS.items() if name in names]
    run = Run(steps, LOGS, sum(step.minutes for step in steps), "make full PARTS={}", lambda ended: keep(ended, of))
    sys.exit(run.main() if steps else 0)


if __name__ == "__main__":
    main()
