"""Says what became of a run: what failed, what was expected and last seen, and how to run it alone; the seconds of steps and tests.

Reads what steps left in the run's folder: their logs, times.tsv, and of each test program a line for each test (run_tests.py). Ends nothing and starts nothing.
"""
import json
import re
from dataclasses import dataclass

from supervisor import CUT, FAILED, LEFT_OUT, PASSED, ROOT

SLOWEST = 20
# What the harnesses say of a claim that did not hold: what was expected, and what was last seen.
CLAIMS = [re.compile(pattern, re.DOTALL) for pattern in (
    r"not so: (?P<expected>.+?); seen: (?P<seen>.*)",
    r"gave up after (?P<within>[\d.]+ s) waiting for (?P<expected>.+?); last seen: (?P<seen>.*)",
    r"nobody should be away, but while waiting for (?P<expected>.+?): (?P<seen>.*)",
    r"not within (?P<within>[\d.]+ s): (?P<expected>.+?); last seen: (?P<seen>.*)",
    r"(?P<expected>.+?): not within (?P<within>[\d.]+\S*); last seen: (?P<seen>.*)",
    r"assertion `(?P<expected>left \S+ right)` failed(?P<message>: .+?)?\n(?P<seen> +left: .*)",
    r"assertion failed: (?P<expected>.*)(?P<seen>)",
)]
STAMP = r"\[ *[\d.]+ s\] "
PANIC = re.compile(r"^thread '(?P<thread>[^']*)' (?:\(\d+\) )?panicked at (?P<place>\S+):\n", re.MULTILINE)


@dataclass(frozen=True)
class Failure:
    """A test, a job or a scenario that failed: what was expected, what was seen in its place, and the command that runs it alone, where it has one."""

    name: str
    expected: str
    seen: str
    command: str = ""


def split_claim(text):
    """What was expected, and what was seen."""
    for claim in CLAIMS:
        if found := claim.match(text):
            groups = found.groupdict(default="")
            within = f", within {groups['within']}" if "within" in groups else ""
            return groups["expected"] + groups.get("message", "") + within, groups["seen"]
    return "", text


def split_panic(text):
    """What a panic expected, with its place, and what was seen; without the runtime's own frames."""
    text = re.sub(r"\nstack backtrace:\n(?: .*(?:\n|$))*", "\n", text)
    text = re.sub(r"\nnote: .*RUST_BACKTRACE.*", "", text)
    if not (panic := PANIC.search(text)):
        return split_claim(text)
    rest = text[panic.end():]
    following = PANIC.search(rest)
    expected, seen = split_claim(rest[:following.start()] if following else rest)
    return f"{expected or 'no panic'} ({panic['place']})", seen


def entries(path):
    """Lines that run_tests.py wrote; the last one may be half a line."""
    for line in path.read_text(errors="replace").splitlines() if path.exists() else ():
        try:
            yield json.loads(line)
        except ValueError:
            continue


def failed_tests(log, record, _):
    failed = [entry for entry in record if entry["outcome"] == "failed"]
    panics = {panic["thread"]: panic.start() for panic in PANIC.finditer(log)} if failed else {}
    for entry in failed:
        # With --nocapture libtest keeps no words of a test; they are in the log.
        output = entry.get("output") or (log[panics[entry["test"]]:][:4000] if entry["test"] in panics else "")
        yield Failure(entry["test"], *split_panic(output), entry["command"])


def failed_jobs(log, _, again):
    """Lines `[12.3 s] FAILED: …` of e2e's jobs and other programs that stamp their lines."""
    job = stage = ""
    lines = log.splitlines()
    for at, line in enumerate(lines):
        if found := re.match(r"=== (\w+)$", line):
            job, stage = found[1], ""
        elif found := re.match(STAMP + r"(?:---|===) (.*)", line):
            stage = found[1]
        elif found := re.match(STAMP + r"(?:\w+: )?FAILED: (.*)", line):
            text = [found[1]]
            for following in lines[at + 1:at + 12]:
                if re.match(STAMP + r"|==", following):
                    break
                text.append(following)
            yield Failure(": ".join(filter(None, (job, stage))) or again, *split_claim("\n".join(text)), f"make e2e JOBS={job}" if job else "")


def failed_scenarios(log, *_):
    """Scenarios of tests/databases: each begins with its name and ends with how it ended."""
    for found in re.finditer(r"^(\S+): FAILED in \d+ s$", log, re.MULTILINE):
        text = log[:found.start()].rpartition(f"\n{found[1]}\n")[2] if f"\n{found[1]}\n" in log else log[:found.start()]
        panics = list(PANIC.finditer(text))
        yield Failure(found[1], *split_panic(text[panics[-1].start():] if panics else ""), f"cargo test --test databases {found[1]}")


def failed_histories(log, *_):
    for found in re.finditer(r"^history (\d+):(?:(?!^history ).*\n)*?  WRONG: (.*)", log, re.MULTILINE):
        yield Failure(f"history {found[1]}", "a history as the API promises it", found[2], f"HISTORY_SEED={found[1]} make test-history")


def failed_unittests(log, *_):
    for found in re.finditer(r"^(?:FAIL|ERROR): (\w+) \(.*\)\n(?:.+\n)*?-+\n((?:.*\n)*?)(?=\n[=-]{20})", log, re.MULTILINE):
        said = re.split(r"^(?=\w)", found[2], flags=re.MULTILINE)
        yield Failure(found[1], "", said[-1].strip())


def failed_by_exception(log, *_):
    """The last of Python's tracebacks, and the stage in which it came."""
    before, found, trace = log.rpartition("Traceback (most recent call last):\n")
    if found and (error := re.search(r"^(?! )(?:[\w.]+\.)?(\w+)(?:: (.*(?:\n.+){0,8}))?", trace, re.MULTILINE)):
        stages = re.findall(rf"^{STAMP}(?:---|===) (.*)", before, re.MULTILINE)
        expected, seen = split_claim(error[2] or "")
        yield Failure(stages[-1] if stages else "", expected or f"no {error[1]}", seen)


def failed_to_compile(log, *_):
    for found in re.finditer(r"^(error(?:\[\w+\])?: .*)\n +--> (\S+)", log, re.MULTILINE):
        yield Failure(found[2], "code that compiles, without a warning", found[1])


def failed_by_panic(log, *_):
    for found in PANIC.finditer(log):
        yield Failure(found["thread"], *split_panic(log[found.start():][:4000]))


def failed_by_word(log, *_):
    for found in re.finditer(r"^(\S.*?):? FAILED\b[,:]? *(.*(?:\n.+){0,3})", log, re.MULTILINE):
        yield Failure(found[1], "", found[2])


def failed_last(log, *_):
    yield Failure("", "", "\n".join(cleaned(log)[-8:]))


# The first that finds anything says what failed.
READERS = (failed_tests, failed_jobs, failed_scenarios, failed_histories, failed_unittests, failed_by_exception, failed_to_compile, failed_by_panic,
           failed_by_word, failed_last)


def failures(log, record, again):
    return next(found for reader in READERS if (found := list(reader(log, record, again))))


def cleaned(log):
    """Lines without make's own words: that a command failed is known, and they would stand in the place of the command's."""
    return [line[:400] for line in log.splitlines() if line.strip() and not re.match(r"make(\[\d+\])?: ", line)]


def last_lines(path, count):
    return [f"    {line}" for line in cleaned(read(path))[-count:]]


def read(path):
    return path.read_text(errors="replace") if path.exists() else ""


def item(label, text, most=10):
    """A label and its text, whose further lines stand below each other."""
    lines = [line[:400] for line in str(text).strip("\n").splitlines()] or ["-"]
    if len(lines) > most:
        lines = [*lines[:most - 1], f"… {len(lines) - most + 1} lines more in the log"]
    return [f"  {label:<15}{lines[0]}", *(f"  {'':<15}{line}" for line in lines[1:])]


def describe(ended, run):
    """The page's part about a step that did not pass."""
    again = run.again.format(ended.name)
    path = run.folder / f"{ended.name}.log"
    record = list(entries(run.folder / f"{ended.name}.tests"))
    lines = ["", f"{ended.name} {ended.outcome} after {ended.took:.0f} s" + (f": {ended.reason}" if ended.reason else "")]
    running = [entry for entry in record if entry["outcome"] == "running"]
    if running:
        lines += item("was running", "\n".join(f"{entry['test']}, for {entry['seconds']:.0f} s" for entry in running))
        lines += item("alone", running[0]["command"])
    elif ended.outcome == CUT and (name := open_stage(read(path))):
        lines += item("was running", name)
    if ended.left_running:
        lines += item("left running", "\n".join(ended.left_running))
    has_failed_test = any(entry["outcome"] == "failed" for entry in record)
    found = failures(read(path), record, again) if ended.outcome == FAILED or has_failed_test else []
    for first in found[:1]:
        lines += item("first failure", first.name or ended.name) + (item("expected", first.expected) if first.expected else []) + item("last seen", first.seen)
        lines += item("alone", first.command or again)
    if len(found) > 1:
        lines += item(f"and {len(found) - 1} more", "\n".join(dict.fromkeys(one.name for one in found[1:])))
    if not found and not running and not ended.left_running:
        lines += item("last seen", "\n".join(cleaned(read(path))[-8:]))
    return lines + item("the step", again) + item("log", shown(path))


def shown(path):
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) else path


def page(run):
    """What did not pass, for a reader who sees only the end of the output."""
    bad = [one for one in run.ended if one.outcome != PASSED]
    lines = [line for one in bad if one.outcome != LEFT_OUT for line in describe(one, run)]
    lines += ["", *(f"{one.name} left out: {one.reason}" for one in bad if one.outcome == LEFT_OUT)]
    if run.left_mounted:
        lines += ["", "left mounted:", *(f"  umount {point}" for point in run.left_mounted)]
    return [f"=== what did not pass: {len(bad)} of {len(run.ended)} steps", *lines, ""] if bad or run.left_mounted else []


def timed(run):
    """Seconds, step, name and outcome of whatever was timed: tests, scenarios of databases, stages of jobs."""
    for one in run.ended:
        for entry in entries(run.folder / f"{one.name}.tests"):
            yield entry["seconds"], one.name, entry["test"], entry["outcome"]
        log = read(run.folder / f"{one.name}.log")
        for name, outcome, seconds in re.findall(r"^(\S+): (passed|FAILED) in (\d+) s$", log, re.MULTILINE):
            yield int(seconds), one.name, name, outcome
        yield from ((seconds, one.name, name, "ok") for seconds, name in stages(log))


def stages(log):
    """Stages of programs that stamp their lines: `--- NAME` until `done in N s`, and `=== NAME` until `=== NAME ok`."""
    job, stage, begun = "", "", {}
    for line in log.splitlines():
        if found := re.match(r"=== (\w+)$", line):
            job = found[1]
        elif found := re.match(r"\[ *([\d.]+) s\] (.*)", line):
            at, text = float(found[1]), found[2]
            if text.startswith("--- "):
                stage = text[4:]
            elif found := re.match(r" +done in ([\d.]+) s$", text):
                yield float(found[1]), f"{job}: {stage}"
            elif text.startswith("=== ") and text.endswith(" ok") and text[4:-3] in begun:
                yield at - begun.pop(text[4:-3]), text[4:-3]
            elif text.startswith("=== "):
                begun[text[4:]] = at


def open_stage(log):
    """The stage or scenario that began last, if it did not end."""
    found = re.findall(rf"^(?:{STAMP}--- (.*)|([a-z][a-z0-9]*(?:-[a-z0-9.]+)+)$)", log, re.MULTILINE)
    name = next(filter(None, found[-1])) if found else ""
    ends = rf"^{re.escape(name)}: (?:passed|FAILED) in |^{STAMP} +done in "
    return name if name and not re.search(ends, log[log.rindex(name):], re.MULTILINE) else ""


def counts(run):
    """What the tests say of how many they were."""
    for one in run.ended:
        outcomes = [entry["outcome"] for entry in entries(run.folder / f"{one.name}.tests")]
        if outcomes:
            words = {"ok": "passed", "failed": "failed", "running": "cut off"}
            yield f"{one.name}: {len(outcomes)} tests, " + ", ".join(f"{outcomes.count(key)} {words[key]}" for key in words if key in outcomes)
        log = read(run.folder / f"{one.name}.log")
        yield from (f"{one.name}: {line}" for line in re.findall(r"^(?:fuzz: .* ok|\d+ (?:scenarios|histories).*)$", log, re.MULTILINE))


def table(run, took):
    yield "=== seconds; processor: of all that a step started, daemons and containers too; jobs of e2e have theirs in e2e's"
    yield f"{'begun':>7} {'took':>7} {'processor':>10}  {'':12}  step"
    # (e2e's jobs write lines of their own, and one that was cut off may have written half a line)
    rows = [row for line in read(run.table).splitlines() if len(row := line.split("\t")) == 5 and row[1].isdigit()]
    for name, begun, seconds, processor, outcome in sorted(rows, key=lambda row: float(row[1])):
        yield f"{begun:>7} {seconds:>7} {processor:>10}  {outcome:12}  {name}"
    yield f"{took:>15.0f} {sum(one.processor for one in run.ended):>10.0f}  {'':12}  in all"


def write(run):
    """The end of the output, which is report.txt in the run's folder, too; tests.tsv beside it has all that was timed."""
    took = max((one.begun + one.took for one in run.ended), default=0)
    slow = sorted(timed(run), reverse=True)
    (run.folder / "tests.tsv").write_text("".join(f"{seconds:.3f}\t{step}\t{name}\t{outcome}\n" for seconds, step, name, outcome in slow))
    lines = ["", *table(run, took)]
    if slow:
        lines += ["", f"=== the {min(SLOWEST, len(slow))} slowest of {len(slow)} tests, scenarios and stages; all are in {shown(run.folder / 'tests.tsv')}"]
        lines += [f"{seconds:>9.1f} s  {step}: {name}" + ("" if outcome in ("ok", "passed") else f" ({outcome})") for seconds, step, name, outcome in slow[:SLOWEST]]
    lines += ["", *counts(run), "", *page(run)]
    bad = [f"{one.name} {one.outcome}" for one in run.ended if one.outcome != PASSED] + [f"left mounted {point}" for point in run.left_mounted]
    lines.append(f"=== {'did not pass: ' + ', '.join(bad) if bad else 'all of it passed'} ({took:.0f} s; {shown(run.folder / 'report.txt')})")
    text = "\n".join(lines)
    (run.folder / "report.txt").write_text(text + "\n")
    return text
