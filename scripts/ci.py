#!/usr/bin/env python3
"""ci.py [STEP ...]: all that a change must pass, or these steps and what they need. Ends with a page of what did not pass; it is also
.cache/ci/last/report.txt, beside the logs of the steps and times.tsv: step, second of its begin, seconds that it took, processor seconds, how it ended.

Steps run side by side as soon as what they need is there, in the order of the list: what the longest way leads through stands first.
"""
import os
import sys

from steps import ROOT, Run, Step

LOGS = ROOT / ".cache/ci"
# Most minutes of a whole run. Whoever runs CI ends it after 90, without a report.
MINUTES = 85
# Real databases: at most two beds, or two steps with databases as plain processes, which miss their own deadlines beside a bed. Nothing is compiled
# beside them: `lint` and `testbed` come before. Two steps that share a word run one after the other. All steps with
# a Cassandra as a plain process are SECOND, since its JMX listens on 127.0.0.1.
CLUSTERS, INSTALLS = frozenset({"clusters, first", "clusters, second"}), frozenset({"installs, first", "installs, second"})
FIRST, SECOND = frozenset({"clusters, first", "installs, first"}), frozenset({"clusters, second", "installs, second"})
# Compiles all that is ours, once: the tests, and the program that they, e2e, `navigator local` and the quick start run.
OURS = ("lint", "testbed")
BEDS = ("image", "images")
# `image` takes seconds, and the jobs that need it are the longest part of the run: all others begin after it, so that these jobs are first.
REST = OURS + ("image",)
STEPS = [
    Step("deps", "make deps", cores=2),
    Step("lint", "make lint", ("deps",), minutes=45, cores=2, memory=6),
    Step("images", "make database-images", ("deps",), cores=0.5),
    Step("testbed", "make testbed .cache/mdbook", ("lint",), minutes=45, cores=2, memory=4),
    Step("image", "make image PROFILE=dev", OURS, cores=0.5),
    Step("e2e-clusters", "make e2e-clusters", BEDS, minutes=45, cores=0.9, memory=10, alone=CLUSTERS, first="^bed is up"),
    Step("e2e-installs", "make e2e-installs", BEDS, minutes=45, cores=0.5, memory=5, alone=INSTALLS, first="^bed is up"),
    Step("databases-elasticsearch", "make test-databases SCENARIOS=elasticsearch", REST, minutes=30, cores=0.7, memory=5, alone=FIRST),
    Step("databases-cassandra", "make test-databases SCENARIOS=cassandra", REST, minutes=30, cores=0.7, memory=5, alone=SECOND),
    Step("quickstart", "make test-quickstart", REST, minutes=30, cores=0.7, memory=6, alone=SECOND),
    Step("local", "make test-local SCENARIOS='bad-input clients'", REST, minutes=30, cores=0.7, memory=5, alone=SECOND),
    Step("searches", "make test-searches", REST, cores=1, nice=10),
    Step("unit", "make test-unit", REST, cores=1),
    Step("it", "make test-it", REST, minutes=30, cores=1, memory=3),
    Step("load", "make test-load", REST, minutes=30, cores=1, memory=3),
    Step("parity", "make test-parity SECTIONS='requests apply patch delete clientgo'", REST, cores=1, memory=3),
    Step("history", "make test-history", REST, cores=1, memory=3),
    Step("install", "make test-install", REST, cores=1),
    Step("ci", "make test-ci", REST, cores=0.5),
    Step("page", "make test-page", REST, cores=1),
    Step("monitoring", "make test-monitoring", REST, cores=0.5, memory=1),
    Step("licenses", "make licenses", REST, cores=0.5, memory=1),
    Step("docs", "make docs", REST, cores=0.5, memory=1),
    Step("fuzz", "make fuzz", REST, cores=1),
]


def chosen(names):
    """The steps of these names and all before them; all steps where none is named."""
    known = {step.name: step for step in STEPS}
    wanted = list(names or known)
    for name in wanted:
        if name not in known:
            sys.exit(f"ci.py: there is no step {name}: {' '.join(known)}")
        wanted += [before for before in known[name].after if before not in wanted]
    return [step for step in STEPS if step.name in wanted]


def main():
    # CI compiles once, so it needs no incremental state, which costs a tenth of the processor seconds and 2 GB.
    os.environ.setdefault("CARGO_INCREMENTAL", "0")
    # Programs in Go (kube-apiserver, etcd, kubectl) live for minutes: a fifth to a quarter of what they compute is garbage collection.
    os.environ.setdefault("GOGC", "400")
    sys.exit(Run(chosen(sys.argv[1:]), LOGS, MINUTES, "make ci STEPS={}").main())


if __name__ == "__main__":
    main()
