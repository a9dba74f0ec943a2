#!/usr/bin/env python3
"""run.py [SECTION ...]: kubectl's invocations of cases.txt put to our server and to CRDs, each behind a kube-apiserver of its own; then
client-go's tests (tests/clientgo) put to our server. SECTION: those sections alone; `clientgo` stands for client-go's tests.

Needs NAVIGATOR_TESTBED with its programs and clientgo.test, and NAVIGATOR, the binary. Where answers are meant to differ is
differences.txt; UPDATE_GOLDEN=1 rewrites it, and a reason is to be written there by hand. KEEP=1 keeps the worlds' logs.
"""
import collections
import difflib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import cases

HERE = Path(__file__).parent
GOLDEN = HERE / "differences.txt"
LEAST = 300
WHY = "because: "
NO_WHY = WHY + "?"
# Warning of our server at every write of a cluster with logins. No schema of a CRD could give it; tests/golden/api holds it.
OWN_ADVICE = "Warning: spec.config.authenticator: keyspace system_auth holds the logins"


def start(name, folder, work, *args):
    """A world in namespaces of its own, all of which ends with its first process, and that with this one."""
    command = ["unshare", "--net", "--pid", "--fork", "--kill-child=KILL", "--mount-proc", sys.executable, HERE / "world.py", name, folder / name, work, *args]
    user = [] if os.geteuid() == 0 else ["--map-root-user"]
    return subprocess.Popen(["setpriv", "--pdeathsig", "KILL", "--", command[0], *user, *command[1:]])


def shown(answer):
    """An answer as lines, to be compared."""
    parts = [f"{'status' if answer['line'].startswith('> ') else 'exit'} {answer['code']}", *answer["stdout"].splitlines()]
    return parts + [f"stderr: {line}" for line in answer["stderr"].splitlines() if not line.startswith(OWN_ADVICE)]


def differences(ours, twin):
    """Each line whose answers differ, with what does: `-` is the CRD's, `+` ours."""
    found, typed = {}, collections.Counter()
    for name, answers in twin.items():
        for theirs, mine in zip(answers, ours[name], strict=True):
            key = f"[{name}] {theirs['line']}"
            typed[key] += 1
            if typed[key] > 1:
                key += f" (#{typed[key]})"
            if shown(theirs) != shown(mine):
                found[key] = [line for line in difflib.unified_diff(shown(theirs), shown(mine), lineterm="", n=0)
                              if not re.match(r"(---|\+\+\+) $|@@", line)]
    return found


def listed():
    """What differences.txt tells: for each line the reason, and the difference."""
    found = {}
    for block in re.split(r"\n\n+(?=\[)", GOLDEN.read_text() if GOLDEN.exists() else ""):
        lines = block.strip("\n").splitlines()
        if lines and lines[0].startswith("["):
            found[lines[0]] = (lines[1], lines[2:])
    return found


def write(found, known):
    head = ["# Where our server means to answer otherwise than a CRD: the line of cases.txt, why, and how: `-` is the CRD, `+` is ours.",
            "# Written by UPDATE_GOLDEN=1 make test-parity, but for the reasons. A difference that has gone, or changed, fails the test.", ""]
    blocks = ["\n".join([key, known.get(key, (NO_WHY,))[0], *difference]) for key, difference in found.items()]
    GOLDEN.write_text("\n".join(head) + "\n" + "\n\n".join(blocks) + "\n")


def judge(folder, only):
    ours, twin = (json.loads((folder / f"{name}.json").read_text()) for name in ("ours", "twin"))
    found, known = differences(ours, twin), listed()
    if only:
        known = {key: value for key, value in known.items() if re.match(r"\[(.*?)\]", key)[1] in only}
    elif os.environ.get("UPDATE_GOLDEN"):
        write(found, known)
        known = listed()
    wrong = []
    for key, difference in found.items():
        if key not in known:
            wrong.append("\n".join(["differs, and is not listed: " + key, *difference]))
        elif known[key][1] != difference:
            wrong.append("\n".join([f"differs otherwise than listed: {key}", *difference]))
        elif known[key][0] == NO_WHY or not known[key][0].startswith(WHY):
            wrong.append(f"is listed without a reason: {key}")
    wrong += [f"is listed, and does not differ any more: {key}" for key in known.keys() - found.keys()]
    print("\n\n".join(wrong))
    count = sum(map(len, twin.values()))
    print(f"{count} lines: {count - len(found)} alike, {len(found) - sum(key not in known for key in found)} differ as listed, {len(wrong)} wrong")
    if not only and count < LEAST:
        wrong.append(f"only {count} lines")
    return not wrong


def main():
    only, worlds = sys.argv[1:], []
    if unknown := set(only) - {*cases.sections(), "clientgo"}:
        sys.exit(f"run.py: there is no section {', '.join(sorted(unknown))}")
    folder = Path(tempfile.mkdtemp(prefix="navigator-parity-"))
    # (its worlds end with it, and its folder is removed)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        worlds = [start(name, folder, "work", folder / f"{name}.json", *only) for name in ("ours", "twin")]
        ended = [world.wait() for world in worlds]
        good = not any(ended) and judge(folder, only)
    finally:
        for world in worlds:
            world.kill()
            world.wait()
        if os.environ.get("KEEP"):
            print(f"kept: {folder}")
        else:
            shutil.rmtree(folder)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
