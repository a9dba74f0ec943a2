#!/usr/bin/env python3
"""ci.py [STEP ...]: all that a change must pass, or these steps and what they need. Ends with a page of what did not pass; it is also
.cache/ci/last/report.txt, beside the logs of the steps and times.tsv: step, second of its begin, seconds that it took, processor seconds, how it ended.

Steps run side by side as soon as what they need is there, in the order of the list: what the longest way leads through stands first.
"""
import os
import sys

from steps import ROOT, Run, Step

LOGS = ROOT / ".cache/ci"
# Most minutes of a whole run; a machine of 2 cores takes less than an hour with an empty cache.
MINUTES = 85
# The image follows lint at once: it takes seconds, and the jobs that need it are the longest part of the run.
OURS, BED = ("lint", "image"), ("testbed",)
BEDS = ("image", "older", "testbed", "images")
STEPS = [
    Step("deps", "make deps"),
    # Compiles all that is ours, once: the tests, and the program that they, e2e and the quick start's reader see.
    Step("lint", "make lint", ("deps",), minutes=40),
    Step("testbed", "make testbed", ("deps",), minutes=40),
    Step("images", "make database-images", ("deps",)),
    Step("image", "make image PROFILE=dev", ("lint",)),
    Step("older", "make older", ("lint",)),
    Step("e2e-clusters", "make e2e-clusters", BEDS, minutes=50),
    Step("e2e-installs", "make e2e-installs", BEDS, minutes=50),
    Step("test-databases", "make test-databases", OURS),
    Step("test", "make test", OURS + BED, minutes=50),
    Step("test-local", "make test-local", OURS + BED),
    Step("quickstart", "make test-quickstart", OURS + BED),
    Step("parity", "make test-parity", OURS + BED),
    Step("test-history", "make test-history", OURS + BED),
    Step("test-install", "make test-install", OURS + BED),
    Step("test-ci", "make test-ci", OURS),
    Step("page", "make test-page", OURS),
    Step("monitoring", "make test-monitoring", OURS),
    Step("licenses", "make licenses", OURS),
    Step("docs", "make docs", OURS, nice=10),
    Step("fuzz", "make fuzz", OURS),
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
    sys.exit(Run(chosen(sys.argv[1:]), LOGS, MINUTES, "make ci STEPS={}").main())


if __name__ == "__main__":
    main()
