#!/usr/bin/env python3
"""run.py [--check | --survey] [NAME ...]: would it be noticed? Builds faults of one line each into a copy of the source, all in
one build, and runs for each the test that has to fail when it is there.

The faults are in the tables beside this file, one a room: what is replaced in which file (blanks do not count), what is wrong
then, and the test that fails. PLANTED in the replacement is true while this fault is chosen. A fault is
caught when its test passes without it and fails with it, by name; a test that hangs, or a program that does not start, catches
nothing. Prints a table, which is also .cache/planted/table.md; ends with 1 and the names of those that were
not caught.

--check builds and runs nothing: can each fault be planted, and is there each test? A change that moves code fails here.
--survey runs all short tests of the room for a fault, and prints which fail: for a fault whose test is to be found.
"""
import contextlib
import hashlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]
TABLES = sorted(pathlib.Path(__file__).parent.glob("*.toml"))
LOGS = ROOT / ".cache/planted"
# The crates, each with the file that lists its modules.
CRATES = {"navigator": "src/lib.rs", "navigator_base": "src/base.rs", "navigator_roles": "src/roles.rs"}
# Kept from run to run, so that only what has changed is compiled again. Not below this tree, whose settings of cargo would count twice.
CACHE = pathlib.Path(os.environ.get("NAVIGATOR_CACHE") or
                     pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "navigator")
TREE = CACHE / "planted" / hashlib.sha256(str(ROOT).encode()).hexdigest()[:12]
# Seconds for one test; the slowest takes a tenth of it. Of a history there are ten, and each may be tried three times.
LIMIT = 300
HISTORIES = 10
# Exit code of libtest when a test failed. The histories end with 1, also when nothing could be tried: their WRONG line counts.
FAILED = 101

MODULE = '''//! Faults that tests are tried against, one at a time: the one that the file CHOSEN of this tree names. (Tests start programs with an
//! environment of their own, so a variable would not reach these.)

use std::sync::LazyLock;

#[allow(clippy::disallowed_methods)]
pub fn is(fault: &str) -> bool {
    static FAULT: LazyLock<Option<String>> =
        LazyLock::new(|| std::fs::read_to_string("TREE/CHOSEN").ok());
    FAULT.as_deref() == Some(fault)
}
'''.replace("TREE", str(TREE))


def crate_of(test):
    """The crate whose unit tests have this test: the one that lists its first module."""
    line = f"mod {test.split('::')[0]};"
    return next((crate for crate, listed in CRATES.items() if line in (ROOT / listed).read_text()), "navigator")


class Fault:
    """One fault, as its table has it."""

    def __init__(self, table, room, row):
        known = {"name", "file", "wrong", "old", "new", "test", "says", "binary", "tests"}
        if set(row) - known:
            sys.exit(f"{table.name}: {row.get('name')} has the unknown field {sorted(set(row) - known)[0]}")
        self.name, self.file, self.wrong = row["name"], row["file"], row["wrong"]
        self.old, self.new = row["old"], row["new"]
        self.room = table.stem
        self.binary = row.get("binary", room.get("binary", "lib"))
        self.test, self.says = row.get("test"), row.get("says")
        if self.binary == "lib":
            self.binary = crate_of(self.test or "")
        # The short tests of the room, for a survey; else those of the file's module and of its neighbours.
        near = "::".join(pathlib.Path(self.file).with_suffix("").parts[1:-1]) + "::"
        self.tests = row.get("tests") or room.get("tests") or [near]
        self.skip = room.get("skip", [])


def faults():
    """All faults; ends where two have one name."""
    found = []
    for table in TABLES:
        room = tomllib.loads(table.read_text())
        found += [Fault(table, room, row) for row in room["fault"]]
    names = [fault.name for fault in found]
    for name in names:
        if names.count(name) > 1:
            sys.exit(f"two faults are named {name}")
    return found


def place(text, old):
    """Where `old` stands in `text`, whatever blanks are between; says how often where that is not once."""
    kept = [index for index, char in enumerate(text) if not char.isspace()]
    dense = "".join(text[index] for index in kept)
    wanted = "".join(old.split())
    times = dense.count(wanted)
    if times != 1:
        return None, times
    at = dense.index(wanted)
    return (kept[at], kept[at + len(wanted) - 1] + 1), 1


def planted(all_faults):
    """The changed files by their paths, with all faults in them; and what cannot be planted."""
    texts, wrong, places = {}, [], {}
    for fault in all_faults:
        text = texts.get(fault.file)
        if text is None:
            path = ROOT / fault.file
            text = path.read_text() if path.is_file() else ""
        span, times = place(text, fault.old)
        if span is None:
            wrong.append(f"{fault.room}.toml: {fault.name}: its `old` stands {times} times in {fault.file}")
            continue
        if fault.new.count("PLANTED") == 0:
            wrong.append(f"{fault.room}.toml: {fault.name}: its `new` does not say PLANTED")
        places[fault.name] = span
        new = fault.new.replace("PLANTED", f'crate::planted::is("{fault.name}")')
        texts[fault.file] = text[:span[0]] + new + text[span[1]:]
    return texts, wrong


def tests_of_source():
    """The names of all functions in src and tests."""
    names = set()
    for folder in ("src", "tests"):
        for path in (ROOT / folder).rglob("*.rs"):
            names |= set(re.findall(r"\bfn (\w+)", path.read_text()))
    return names


def check(all_faults):
    """What is out of date in the tables."""
    wrong = planted(all_faults)[1]
    names = tests_of_source()
    for fault in all_faults:
        if fault.binary != "history" and fault.test and fault.test.split("::")[-1] not in names:
            wrong.append(f"{fault.room}.toml: {fault.name}: there is no test {fault.test}")
        if not (fault.says if fault.binary == "history" else fault.test):
            wrong.append(f"{fault.room}.toml: {fault.name}: it does not name the test that fails")
    return wrong


def copy_tree(texts):
    """Brings the copy of the source up to date, with the faults in it. Files that are as they should be keep their times."""
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True,
                            stdout=subprocess.PIPE).stdout.decode().split("\0")
    contents = {}
    for name in filter(None, listed):
        path = ROOT / name
        if path.is_symlink() or path.is_file():
            contents[name] = path
    jars = [str(path.relative_to(ROOT)) for path in (ROOT / ".cache/agent").glob("*.jar")]
    contents |= {name: ROOT / name for name in jars}
    own = {"src/planted.rs": MODULE.encode()}
    own |= {name: text.encode() for name, text in texts.items()}
    for crate in CRATES.values():
        own[crate] = own.get(crate, (ROOT / crate).read_bytes()) + b"\npub mod planted;\n"
    for name in sorted(set(contents) | set(own)):
        target = TREE / name
        source = contents.get(name)
        target.parent.mkdir(parents=True, exist_ok=True)
        if source is not None and source.is_symlink():
            if not target.is_symlink() or os.readlink(target) != os.readlink(source):
                target.unlink(missing_ok=True)
                target.symlink_to(os.readlink(source))
            continue
        data = own.get(name)
        data = source.read_bytes() if data is None else data
        if not target.is_file() or target.read_bytes() != data:
            target.write_bytes(data)
        if source is not None:
            target.chmod(source.stat().st_mode & 0o777)
    for path in list(TREE.rglob("*")):
        name = str(path.relative_to(TREE))
        # What tests write there is theirs.
        if name.split("/")[0] in (".cache", "built", "target") or path.is_dir() and not path.is_symlink():
            continue
        if name not in contents and name not in own:
            path.unlink()


def build(binaries):
    """Compiles the tests once; returns the programs by their names."""
    built = pathlib.Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target").absolute()
    env = os.environ | {"CARGO_BUILD_BUILD_DIR": str(built), "CARGO_TARGET_DIR": str(TREE / "built"), "CARGO_INCREMENTAL": "1"}
    for name in ("RUSTC_WORKSPACE_WRAPPER", "CLIPPY_ARGS"):
        env.pop(name, None)
    command = [os.environ.get("CARGO", "cargo"), "test", "--no-run", "--message-format=json-render-diagnostics"]
    command += ["--lib"] if binaries & set(CRATES) else []
    for binary in sorted(binaries - set(CRATES)):
        command += ["--test", binary]
    begun = time.monotonic()
    done = subprocess.run(command, cwd=TREE, env=env, stdout=subprocess.PIPE)
    if done.returncode:
        sys.exit("the faults cannot be built: see above")
    programs = {}
    for line in done.stdout.decode().splitlines():
        message = json.loads(line) if line.startswith("{") else {}
        if message.get("reason") == "compiler-artifact" and message.get("profile", {}).get("test") and message.get("executable"):
            programs[message["target"]["name"]] = message["executable"]
    print(f"built in {time.monotonic() - begun:.0f} s", flush=True)
    return programs


def resolve(all_faults, programs):
    """Gives each test the path that it has now: one that moved within its room is found by its name."""
    wrong = []
    for binary in (*CRATES, "it"):
        of_binary = [fault for fault in all_faults if fault.binary == binary and fault.test]
        if not of_binary:
            continue
        listed = subprocess.run([programs[binary], "--list"], cwd=TREE, check=True, stdout=subprocess.PIPE).stdout.decode()
        paths = re.findall(r"^(\S+): test$", listed, re.M)
        for fault in of_binary:
            room, name = fault.test.split("::")[0] + "::", "::" + fault.test.split("::")[-1]
            found = [path for path in paths if path == fault.test]
            found = found or [path for path in paths if path.startswith(room) and path.endswith(name)]
            if len(found) == 1:
                fault.test = found[0]
            else:
                wrong.append(f"{fault.room}.toml: {fault.name}: there is no test {fault.test}")
    return wrong


class Outcome:
    """How one run of tests ended."""

    def __init__(self, code, text, seconds):
        self.code, self.text, self.seconds = code, text, seconds
        self.failed = re.findall(r"^test (\S+)(?: - should panic)? \.\.\. FAILED$", text, re.M)
        self.passed = len(re.findall(r"^test \S+(?: - should panic)? \.\.\. ok$", text, re.M))


def run(command, fault, log, more=None):
    """Runs tests with this fault, or with none, to their end or to the limit, and keeps what they said."""
    chosen = TREE / "CHOSEN"
    chosen.unlink(missing_ok=True)
    if fault:
        chosen.write_text(fault.name)
    env = environment(more)
    begun = time.monotonic()
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "wb") as out:
        child = subprocess.Popen(command, cwd=TREE, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                                 start_new_session=True)
        try:
            code = child.wait(LIMIT)
        except subprocess.TimeoutExpired:
            code = None
        except BaseException:
            code = None
            raise
        finally:
            # Also what a failed test left running.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    return Outcome(code, log.read_text(errors="replace"), time.monotonic() - begun)


def environment(more):
    env = os.environ | {"CARGO_MANIFEST_DIR": str(TREE), "CARGO_PKG_VERSION": "", **(more or {})}
    env.pop("CARGO_PKG_VERSION")
    env.setdefault("NAVIGATOR_TESTBED", str(ROOT / ".testbed"))
    return env


def tests_of(fault, program, chosen):
    """The outcome of the test that has to fail, or of all short tests of the room."""
    threads = ["--test-threads", os.environ.get("RUST_TEST_THREADS", str(2 * (os.cpu_count() or 1)))]
    if chosen:
        return [program, "--exact", chosen, *threads]
    return [program, *fault.tests, *[part for skip in fault.skip for part in ("--skip", skip)], *threads]


def history(fault, program):
    """Runs the histories of CI until one is wrong. Returns by what, and how long it took; None where none is."""
    begun, why = time.monotonic(), "no history is wrong"
    for seed in range(1, HISTORIES + 1):
        log = LOGS / f"{fault.name}.log"
        ended = run([program], fault, log, {"HISTORY_SEED": str(seed)})
        lines = re.findall(r"^  WRONG: (.*)$", ended.text, re.M)
        broken = re.findall(r"^  \d+ are wrong in all: (.*)$", ended.text, re.M)
        if ended.code == 1 and lines and fault.says in broken[0]:
            return f"history {seed}: {broken[0]}", None, time.monotonic() - begun
        if ended.code != 0:
            why = f"history {seed} ended with {ended.code}, {lines[0][:90] if lines else 'nothing is wrong'}: {log.relative_to(ROOT)}"
    return None, why, time.monotonic() - begun


def caught(fault, program):
    """By which test a fault is caught, or why it is not; and the seconds."""
    if fault.binary == "history":
        return history(fault, program)
    log = LOGS / f"{fault.name}.log"
    ended = run(tests_of(fault, program, fault.test), fault, log)
    if ended.code is None:
        return None, f"{fault.test} did not end within {LIMIT} s", ended.seconds
    if ended.code != FAILED:
        return None, f"{fault.test} ended with {ended.code}", ended.seconds
    if ended.failed != [fault.test]:
        return None, f"failed: {', '.join(ended.failed) or 'nothing'}", ended.seconds
    if fault.says and fault.says not in ended.text:
        return None, f"{fault.test} failed and does not say {fault.says!r}", ended.seconds
    return fault.test, None, ended.seconds


def survey(chosen, programs):
    """Which of the room's short tests fail with each fault."""
    for fault in chosen:
        if fault.binary == "history":
            print(f"{fault.name}: {history(fault, programs['history'])}", flush=True)
            continue
        ended = run(tests_of(fault, programs[fault.binary], None), fault, LOGS / f"{fault.name}.survey.log")
        print(f"{fault.name}: {ended.code}, {len(ended.failed)} failed of {len(ended.failed) + ended.passed}, "
              f"{ended.seconds:.1f} s", flush=True)
        for name in ended.failed:
            print(f"    {name}", flush=True)


def baseline(chosen, programs):
    """The tests that fail without any fault."""
    wrong = []
    for binary in (*CRATES, "it"):
        tests = sorted({fault.test for fault in chosen if fault.binary == binary})
        if not tests:
            continue
        threads = ["--test-threads", os.environ.get("RUST_TEST_THREADS", str(2 * (os.cpu_count() or 1)))]
        ended = run([programs[binary], "--exact", *tests, *threads], None, LOGS / f"none-{binary}.log")
        print(f"without a fault: {ended.passed} of {len(tests)} tests pass ({binary}, {ended.seconds:.0f} s)", flush=True)
        known = set(re.findall(r"^test (\S+)(?: - should panic)? \.\.\. ", ended.text, re.M))
        wrong += [f"{name} fails without a fault" for name in ended.failed]
        wrong += [f"there is no test {name}" for name in tests if name not in known]
        if ended.code is None:
            wrong.append(f"tests did not end within {LIMIT} s: {LOGS.relative_to(ROOT)}/none-{binary}.log")
    return wrong


def table(rows):
    """The faults, what caught each, and the seconds."""
    seconds = sum(row[3] for row in rows)
    lines = [f"{len(rows)} faults of one line each, built into Navigator all at once and chosen one at a time, each against the test",
             f"that has to fail by it (`tests/planted`). `make planted` writes this table: {seconds:.0f} s after the build.", "",
             "| room | fault | what is wrong | caught by | seconds |", "|---|---|---|---|---|"]
    for fault, by, _, took in rows:
        cell = (by or "**not caught**").replace("|", "\\|")
        lines.append(f"| {fault.room} | `{fault.name}` | {fault.wrong} | {cell if fault.binary == 'history' else f'`{cell}`'} | {took:.1f} |")
    return "\n".join(lines) + "\n"


def main(words):
    option = words.pop(0) if words and words[0].startswith("--") else ""
    if option not in ("", "--check", "--survey"):
        sys.exit(__doc__)
    everything = faults()
    names = {fault.name for fault in everything}
    rooms = {fault.room for fault in everything}
    unknown = [word for word in words if word not in names | rooms]
    if unknown:
        sys.exit(f"there is no fault or room {unknown[0]}")
    chosen = [fault for fault in everything if not words or fault.name in words or fault.room in words]
    texts, wrong = planted(everything)
    if option != "--survey":
        wrong = check(everything)
    if wrong:
        sys.exit("\n".join(wrong))
    if option == "--check":
        print(f"{len(everything)} faults can be planted")
        return
    copy_tree(texts)
    programs = build({fault.binary for fault in chosen})
    if option == "--survey":
        survey(chosen, programs)
        return
    wrong = resolve(chosen, programs) or baseline([fault for fault in chosen if fault.binary != "history"], programs)
    if wrong:
        sys.exit("\n".join(wrong))
    rows = []
    for fault in chosen:
        by, why, took = caught(fault, programs[fault.binary])
        rows.append((fault, by, why, took))
        print(f"{took:6.1f} s  {fault.room:10} {fault.name}: {by or 'NOT CAUGHT: ' + why}", flush=True)
    LOGS.mkdir(parents=True, exist_ok=True)
    (LOGS / "table.md").write_text(table(rows))
    missed = [fault.name for fault, by, _, _ in rows if not by]
    print(f"{len(rows) - len(missed)} of {len(rows)} faults are caught, in {sum(row[3] for row in rows):.0f} s")
    if missed:
        sys.exit(f"not caught: {' '.join(missed)}")


if __name__ == "__main__":
    main(sys.argv[1:])
