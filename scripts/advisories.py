#!/usr/bin/env python3
"""advisories.py: holds every crate of Cargo.lock against the known advisories in scripts/advisories.txt, and prints the date of that list.
advisories.py renew DATABASE: writes the list from a git repository of RustSec's advisory-db.

A line of the list is an advisory: its id, its crate, its kind, and the versions that it does not concern, as ranges between "||". All crates
are in it, so that one which Cargo.lock gets later is covered. An advisory that deny.toml ignores, with a reason, refuses nothing.
"""
import re
import subprocess
import sys
import tomllib
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "scripts/advisories.txt"
SOURCE = "registry+https://github.com/rust-lang/crates.io-index"
# What is built is for this system; an advisory about others alone concerns nobody.
SYSTEM = {"os": "linux", "arch": "x86_64"}
# Kinds that are said and refuse nothing: no fault of the crate's code is known.
SAID = ("unmaintained", "notice")

VERSION = re.compile(r"(\d+)(?:\.(\d+))?(?:\.(\d+))?(?:-([0-9A-Za-z.-]+))?(?:\+[0-9A-Za-z.-]+)?")
COMPARATOR = re.compile(r"(>=|<=|>|<|=|\^|~)?\s*" + VERSION.pattern)


def parsed(version):
    """The numbers of a version, and what orders its pre-releases: all of them come before the release."""
    major, minor, patch, pre = VERSION.fullmatch(version).groups()
    return (int(major), int(minor), int(patch)), rank(pre)


def rank(pre):
    if pre is None:
        return (1,)
    # Numbers come before words, and a shorter list before a longer one.
    return (0, [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in pre.split(".")])


def bounds(comparator):
    """The lowest version of a comparator, and the first one above it, each None where there is none."""
    found = COMPARATOR.fullmatch(comparator.strip())
    if not found:
        raise ValueError(f"{comparator!r} is no range of versions")
    sign, *numbers, pre = found.groups()
    numbers = [int(number) for number in numbers if number is not None]
    full = tuple(numbers + [0] * (3 - len(numbers)))
    low, release = (full, rank(pre)), (1,)

    def after(place):
        """The first version whose number at this place is higher."""
        return tuple(full[:place]) + (full[place] + 1,) + (0,) * (2 - place), release

    last = len(numbers) - 1
    # What comes right after the versions that are meant.
    if len(numbers) < 3:
        next_one = after(last)
    else:
        next_one = full, (2,) if pre is None else (0, [*low[1][1], (0, -1, "")])
    match sign:
        case ">=":
            return low, None
        case ">":
            return next_one, None
        case "<":
            return None, low
        case "<=":
            return None, next_one
        case "=":
            return low, next_one
        case "~":
            return low, after(min(1, last))
    # As cargo: up to the first number that is not zero, which may change in no compatible version.
    return low, after(next((place for place in range(last) if full[place]), last))


def holds(reach, version):
    """Is a version in a range, all of whose comparators must hold? A pre-release of the version where a range ends is not in it."""
    numbers, order = parsed(version)
    for low, end in map(bounds, reach.split(",")):
        if low and (numbers, order) < low:
            return False
        if end and ((numbers, order) >= end or (numbers == end[0] and end[1] == (1,))):
            return False
    return True


def advisories(text):
    """The date of a list, and its advisories as (id, crate, kind, ranges)."""
    when = re.search(r"^# Date: (\d{4}-\d\d-\d\d)$", text, re.M)
    if not when:
        raise ValueError("the list has no date")
    known = []
    for line in text.splitlines():
        if not line.startswith("#"):
            name, crate, kind, safe = line.split("\t")
            known.append((name, crate, kind, [reach for reach in safe.split(" || ") if reach]))
    return date.fromisoformat(when[1]), known


def concerned(known, packages):
    """Each crate from crates.io and each advisory that concerns its version."""
    by_crate = {}
    for advisory in known:
        by_crate.setdefault(advisory[1], []).append(advisory)
    for package in packages:
        if package.get("source") == SOURCE:
            for advisory in by_crate.get(package["name"], []):
                if not any(holds(reach, package["version"]) for reach in advisory[3]):
                    yield package, advisory


def check(text, lock, rules, today):
    """What is to be said, and what refuses this Cargo.lock, as lines."""
    when, known = advisories(text)
    ignored = {entry if isinstance(entry, str) else entry["id"] for entry in rules.get("advisories", {}).get("ignore", [])}
    said, refused = [], []
    for package, (name, crate, kind, safe) in concerned(known, lock["package"]):
        line = f"{crate} {package['version']}: {name}, {kind}; not in {' or '.join(safe) or 'any version'}: https://rustsec.org/advisories/{name}"
        (said if kind in SAID or name in ignored else refused).append(line)
    crates = len([package for package in lock["package"] if package.get("source") == SOURCE])
    said.append(f"{crates} crates were held against {len(known)} advisories of {when}, {(today - when).days} days old; `make deny` renews them")
    return said, refused


def written(database):
    """The list from a repository: as text."""
    def git(*arguments, **more):
        return subprocess.run(["git", "-C", str(database), *arguments], check=True, capture_output=True, text=True, **more).stdout

    names = [name for name in git("ls-tree", "-r", "--name-only", "HEAD", "crates").splitlines() if name.endswith(".md")]
    lines = sorted(filter(None, (line_of(git("show", f"HEAD:{name}")) for name in names)))
    if not lines:
        raise ValueError(f"{database} holds no advisories")
    commit, day = git("log", "-1", "--format=%H %cs").split()
    return (f"# Known advisories about crates, from https://github.com/RustSec/advisory-db at {commit}. `make deny` renews this file.\n"
            f"# Date: {day}\n" + "".join(f"{line}\n" for line in lines))


def line_of(text):
    """The line of an advisory; None where it concerns nothing here, or was withdrawn."""
    said = tomllib.loads(re.search(r"^```toml\n(.*?)^```", text, re.M | re.S)[1])
    advisory, versions, affected = said["advisory"], said["versions"], said.get("affected", {})
    if "withdrawn" in advisory or any(affected.get(key) and name not in affected[key] for key, name in SYSTEM.items()):
        return None
    safe = [" ".join(reach.split()) for reach in versions["patched"] + versions.get("unaffected", [])]
    for reach in safe:
        list(map(bounds, reach.split(",")))
    return "\t".join([advisory["id"], advisory["package"], advisory.get("informational", "vulnerability"), " || ".join(safe)])


def main():
    if sys.argv[1:2] == ["renew"] and len(sys.argv) == 3:
        text = written(sys.argv[2])
        LIST.write_text(text)
        when, known = advisories(text)
        print(f"{LIST.relative_to(ROOT)}: {len(known)} advisories of {when}")
        return
    if len(sys.argv) > 1:
        sys.exit("usage: advisories.py [renew DATABASE]")
    lock, rules = (tomllib.loads((ROOT / name).read_text()) for name in ("Cargo.lock", "deny.toml"))
    said, refused = check(LIST.read_text(), lock, rules, date.today())
    print("\n".join(said))
    if refused:
        sys.exit("\n".join(["advisories.py: Cargo.lock has versions with known faults:", *refused]))


if __name__ == "__main__":
    main()
