#!/usr/bin/env python3
"""full.py [PART ...]: shows at length what CI shows in short, or these parts of it; hours, two parts at a time. Writes what became of each
part into docs/tested.md, as soon as it ended; rows of other parts stay as they are. A part that fails ends nothing but itself.

With --table it only writes the rows of parts that the page lacks, and takes away those of parts that are gone.
"""
import re
import subprocess
import sys
from datetime import datetime, timezone

from steps import PASSED, ROOT, Run, Step

LOGS, PAGE = ROOT / ".cache/full", ROOT / "docs/tested.md"
HEAD = "| part | what it shows | commit | date | minutes | outcome |\n|---|---|---|---|---|---|\n"
# What a part uses alone. BED: the image and the test bed. REST: the processors, for databases whose times are judged, and the build.
BED, REST = frozenset({"bed"}), frozenset({"rest"})
ALL = BED | REST
# What each shows, its command, minutes after which it hangs, and what it uses.
PARTS = {
    "shipped": ("what is shipped: built, at most as large as it may be, and in charge of real clusters on one machine", "make shipped", 120, BED),
    "e2e": ("all of CI's jobs on Kubernetes, on the shipped image", "make e2e TRIED=release", 180, BED),
    "guides": ("the guides of machines, Cassandra, Elasticsearch, hardening and migration as typed, on the shipped image", "make e2e-guides TRIED=release", 120, BED),
    "collector": ("Kubernetes' garbage collector deletes nothing, at ten moments at which the API goes, on the shipped image", "make e2e-collector TRIED=release", 60, BED),
    "scenarios": ("what once gave way with databases on Kubernetes, on the shipped image", "make e2e-scenarios TRIED=release", 120, BED),
    "drains": ("machines are drained without pause under clients of Cassandra and Elasticsearch, on the shipped image", "make e2e-drains TRIED=release DRAIN_SECONDS=300", 120, BED),
    "lost": ("a node of Cassandra, and two masters of Elasticsearch, are lost for good, given up and come back, on the shipped image", "make e2e-lost TRIED=release", 90, BED),
    "rungs": ("encryption and logins are turned on and off under clients, in Cassandra round by round, in Elasticsearch by one stop, on the shipped image", "make e2e-rungs TRIED=release", 90, BED),
    "renewals": ("certificates of ten minutes are renewed three times, and both CAs replaced, in four releases of the databases, under clients", "make test-renewals", 60, REST),
    "shared-ring": ("a ring of two clusters with CAs of their own is encrypted between its nodes rung by rung, gets another CA on one side, is opened again, and asks for logins; a third cluster joins, secure from its first moment", "make test-shared-ring", 40, REST),
    "taken-over": ("a ring whose people made its logins becomes one whose logins are Navigator's, under a client of theirs", "make test-taken-over", 30, REST),
    "secure-upgrade": ("three nodes of each database, secured, go to the next major version one by one under a client with a role of the spec", "make test-secure-upgrade", 60, REST),
    "edits": ("what people ask of clusters and take back: departures, a stop, a pool; under clients, on the shipped image", "make e2e-edits TRIED=release", 90, BED),
    "refusals": ("pods that a quota or Pod Security refuses are told of within a minute, on the shipped image", "make e2e-refusals TRIED=release", 60, BED),
    "storage": ("volumes of Cassandra grow under a client, and a full one holds its node until it has grown, on the shipped image", "make e2e-storage TRIED=release", 30, BED),
    "leader": ("what the controller writes, and that one alone writes when the leader is killed or stopped, on the shipped image", "make e2e-leader TRIED=release", 45, BED),
    "runner": ("the bed's real machine goes to the next minor version by kubeadm and its runner, killed at each step, and back where the new kubelet does not start, on the shipped image", "make e2e-runner TRIED=release", 60, BED),
    "machines": ("five hollow machines go to the next minor version while the coordinator is killed at every change and databases serve, and their own machine is rebooted, on the shipped image", "make e2e-machines TRIED=release", 60, BED),
    "load": ("what somebody with few rights can send through kube-apiserver stops nobody, on the shipped image", "make e2e-load TRIED=release", 60, BED),
    "databases": ("every scenario of pilots and real databases, old and new versions", "make test-databases-full", 360, REST),
    "histories": ("100 histories of API servers that break", "make test-history HISTORY_SEED=1..100", 120, REST),
    "kill-store": ("the embedded store, killed 1000 times and without power 200 times", "make kill-store", 120, REST),
    "full-stores": ("each store, full to its bound, is served by ten servers in a row in 256 MiB", "make full-stores", 60, REST),
    "full-registries": ("500 namespaces get the credentials of ten registries, and nothing is written in a minute at rest", "make full-registries", 60, REST),
    "fuzz": ("decoding of damaged manifests for 10 minutes", "make fuzz FUZZ=600", 30, REST),
    "monitoring": ("alerts and dashboards by promtool of the newest Prometheus", "make test-monitoring-newest", 60, REST),
    # Its build overwrites the program of the tests, so it shares neither.
    "planted": ("that histories find bugs: six are built in", "make planted", 60, ALL),
}


def git(*words):
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def commit():
    """What is checked out, with a + where files beside the record of tests differ from it."""
    changed = git("status", "--porcelain", "--", ".", ":!docs/tested.md", ":!docs/test-databases.md")
    return git("rev-parse", "--short", "HEAD") + ("+" if changed else "")


def rows():
    """The page's rows by part."""
    table = PAGE.read_text().partition(HEAD)[2].partition("\n\n")[0]
    return {re.match(r"\| `([\w-]+)` \|", row)[1]: row for row in table.splitlines()}


def write(changed):
    text = PAGE.read_text()
    before, head, rest = text.partition(HEAD)
    if not head:
        sys.exit(f"full.py: {PAGE} has no table that begins with\n{HEAD}")
    known = rows() | changed
    table = [known.get(part, f"| `{part}` | {shows} | | | | not run yet |") for part, (shows, *_) in PARTS.items()]
    PAGE.write_text(before + head + "\n".join(table) + "\n\n" + rest.partition("\n\n")[2])


def row(part, ended, of):
    outcome = "passed" if ended.outcome == PASSED else ended.outcome
    return f"| `{part}` | {PARTS[part][0]} | {of} | {datetime.now(timezone.utc):%Y-%m-%d} | {ended.took / 60:.0f} | {outcome} |"


def main():
    if sys.argv[1:] == ["--table"]:
        return write({})
    names = sys.argv[1:] or list(PARTS)
    if unknown := [name for name in names if name not in PARTS]:
        sys.exit(f"full.py: there is no part {' '.join(unknown)}: {' '.join(PARTS)}")
    of = commit()
    steps = [Step(name, command, minutes=minutes, alone=uses) for name, (_, command, minutes, uses) in PARTS.items() if name in names]
    run = Run(steps, LOGS, 2, sum(step.minutes for step in steps), lambda ended: write({ended.name: row(ended.name, ended, of)}))
    passed = run.all()
    run.report()
    run.say("all of it passed" if passed else "FAILED")
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
