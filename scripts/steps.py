"""Runs commands as steps, for ci.py and full.py: side by side, each with a log, a deadline and its processor seconds.

Owns when a step begins, and that nothing of it is left when it ends: a step's first process adopts whatever its programs leave behind,
daemons and containers too, counts their processor seconds when they end, and ends them with the step. Knows no step by name.
"""
import contextlib
import ctypes
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
# Seconds that a step gets after it was asked to end, to take down what it set up.
GRACE = 60
# Seconds that processes get which outlive their step, to end by themselves.
LINGER = 5
PASSED, FAILED, HUNG, STOPPED, LEFT_OUT = "passed", "FAILED", "HUNG", "STOPPED", "left out"
OUTCOMES = (PASSED, FAILED, HUNG, STOPPED)


@dataclass(frozen=True)
class Step:
    """A command, the steps that must have passed before, minutes after which it hangs, and how far it steps back for others. `alone`: none
    that has one of these words, too, runs beside it."""

    name: str
    command: str
    after: tuple = ()
    minutes: int = 40
    nice: int = 0
    alone: frozenset = frozenset()


@dataclass(frozen=True)
class Ended:
    """A line of the table: seconds since the beginning of all, seconds by the clock, processor seconds."""

    name: str
    begun: float
    took: float
    processor: float
    outcome: str

    def row(self):
        return f"{self.name}\t{self.begun:.0f}\t{self.took:.0f}\t{self.processor:.0f}\t{self.outcome}\n"


class Run:
    """Steps on their way. `at_once` of them run beside each other; of those that may begin, the first in the list does. Each that ended is
    told, to who wants to know."""

    def __init__(self, steps, logs, at_once, minutes, told=lambda ended: None):
        self.waiting, self.logs, self.at_once = list(steps), logs, at_once
        self.running, self.ended = {}, []
        self.begun = time.monotonic()
        self.ends = self.begun + minutes * 60
        self.table = logs / "times.tsv"
        self.stopping, self.told = False, told

    def say(self, text):
        print(f"=== {text} ({time.monotonic() - self.begun:.0f} s)", flush=True)

    def all(self):
        """Runs them; true when all passed. One that fails hides nothing of the others, but nothing comes after it."""
        self.logs.mkdir(parents=True, exist_ok=True)
        for old in self.logs.iterdir():
            old.unlink()
        self.table.touch()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self.stop)
        while self.begin_some() or self.running:
            pid, status = os.wait()
            self.finish(*self.running.pop(pid), status)
        return all(one.outcome == PASSED for one in self.ended)

    def begin_some(self):
        passed = {one.name for one in self.ended if one.outcome == PASSED}
        over = {one.name for one in self.ended} - passed
        taken = {word for step, _ in self.running.values() for word in step.alone}
        for step in list(self.waiting):
            if self.stopping or over & set(step.after):
                self.waiting.remove(step)
                over.add(step.name)
                self.ended.append(Ended(step.name, time.monotonic() - self.begun, 0, 0, LEFT_OUT))
            elif passed.issuperset(step.after) and len(self.running) < self.at_once and not taken & step.alone:
                self.waiting.remove(step)
                self.begin(step)
                taken |= step.alone

    def begin(self, step):
        self.say(f"{step.name} begins: {step.command}")
        sys.stdout.flush()
        begun = time.monotonic()
        pid = os.fork()
        if pid == 0:
            supervisor = Supervisor(step, self.logs, begun - self.begun, min(step.minutes * 60, self.ends - begun))
            try:
                os._exit(supervisor.run())
            finally:
                os._exit(os.EX_SOFTWARE)
        self.running[pid] = (step, begun)

    def finish(self, step, begun, status):
        took = time.monotonic() - begun
        used = self.logs / f"{step.name}.processor"
        processor = float(used.read_text()) if used.exists() else 0
        code = os.waitstatus_to_exitcode(status)
        one = Ended(step.name, begun - self.begun, took, processor, OUTCOMES[code] if 0 <= code < len(OUTCOMES) else FAILED)
        self.ended.append(one)
        with open(self.table, "a", encoding="utf-8") as table:
            table.write(one.row())
        self.say(f"{step.name} {one.outcome} after {took:.0f} s, its log:")
        sys.stdout.write((self.logs / f"{step.name}.log").read_text(errors="replace"))
        sys.stdout.flush()
        self.told(one)

    def stop(self, *_):
        self.stopping = True
        for pid in self.running:
            os.kill(pid, signal.SIGTERM)

    def report(self):
        """The last words of what did not pass, and the table."""
        for one in self.ended:
            if one.outcome in (FAILED, HUNG, STOPPED):
                print(f"\n=== {one.name} {one.outcome} after {one.took:.0f} s; it last said:")
                print(*(self.logs / f"{one.name}.log").read_text(errors="replace").splitlines()[-60:], sep="\n")
        print("\n=== seconds; processor: of all that a step started, daemons and containers too; jobs of e2e have theirs in e2e's")
        print(f"{'begun':>7} {'took':>7} {'processor':>10}  {'':8}  step")
        rows = [line.split("\t") for line in self.table.read_text().splitlines()]
        rows += [one.row().rstrip("\n").split("\t") for one in self.ended if one.outcome == LEFT_OUT]
        for name, begun, took, processor, outcome in sorted(rows, key=lambda row: float(row[1])):
            print(f"{begun:>7} {took:>7} {processor:>10}  {outcome:8}  {name}")
        print(f"{time.monotonic() - self.begun:>15.0f} {sum(one.processor for one in self.ended):>10.0f}            in all")
        # The complaints of failed steps again, in short, for a reader who sees only the end of the output.
        for one in self.ended:
            if one.outcome in (FAILED, HUNG, STOPPED):
                print(f"\n=== {one.name} {one.outcome}:", *complaints((self.logs / f"{one.name}.log").read_text(errors="replace")), sep="\n")


class Supervisor:
    """The first process of a step, and the parent of whatever its programs leave behind."""

    def __init__(self, step, logs, begun, limit):
        self.step, self.logs, self.begun, self.limit = step, logs, begun, limit
        self.outcome, self.processor, self.stopped, self.killed = None, 0.0, False, set()
        # Time at which processes of the step that still run are asked to end, or killed.
        self.due = time.monotonic() + limit

    def run(self):
        """Its outcome's place in OUTCOMES, once nothing of it is left."""
        signal.signal(signal.SIGTERM, self.stop)
        libc = ctypes.CDLL(None)
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        # A session of its own: Linux gives each an equal share of the processors, and nice counts within one only.
        os.setsid()
        os.nice(self.step.nice)
        with contextlib.suppress(OSError):
            Path("/proc/self/autogroup").write_text(str(self.step.nice))
        environment = {**os.environ, "NAVIGATOR_TIMES": str(self.logs / "times.tsv"), "NAVIGATOR_BEGUN": f"{self.begun:.0f}"}
        with open(self.logs / f"{self.step.name}.log", "w", encoding="utf-8") as self.log:
            # The object is kept in self: Popen's destructor would wait for the process beside reap().
            try:
                self.process = subprocess.Popen(shlex.split(self.step.command), cwd=ROOT, env=environment, stdin=subprocess.DEVNULL,
                                                stdout=self.log, stderr=self.log, process_group=0)
            except OSError as error:
                self.log.write(f"{self.step.command}: {error}\n")
                return OUTCOMES.index(FAILED)
            while self.reap():
                if time.monotonic() > self.due:
                    self.end()
                time.sleep(0.03)
        (self.logs / f"{self.step.name}.processor").write_text(str(self.processor))
        return OUTCOMES.index(self.outcome)

    def stop(self, *_):
        self.stopped, self.due = True, 0

    def tell(self, text):
        self.log.write(f"=== {text}\n")
        self.log.flush()

    def reap(self):
        """Counts what ended; false when nothing is left."""
        try:
            while (ended := os.wait3(os.WNOHANG))[0]:
                pid, status, used = ended
                self.processor += used.ru_utime + used.ru_stime
                if pid == self.process.pid:
                    self.outcome = self.outcome or (PASSED if status == 0 else FAILED)
                    self.due = time.monotonic() + LINGER
            return True
        except ChildProcessError:
            return False

    def end(self):
        """Asks the step to end, and kills what is left of one that was asked or ended."""
        if self.outcome is None:
            self.outcome, self.due = STOPPED if self.stopped else HUNG, time.monotonic() + GRACE
            self.tell("asked to end: " + ("all is stopped" if self.stopped else f"it ran longer than {self.limit:.0f} s"))
            os.killpg(self.process.pid, signal.SIGTERM)
            return
        for pid in descendants(os.getpid()):
            if pid not in self.killed:
                self.tell(f"killed, for it was left running: {command_of(pid)}")
                self.killed.add(pid)
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


def complaints(log):
    """The last lines that say what went wrong, each with the one after it; the last with how it all stood then."""
    # That a command failed is known by now; make's own words would stand in the place of the command's.
    lines = [line for line in log.splitlines() if not re.match(r"make(\[\d+\])?: ", line)]
    said = r"panicked at|FAILED|HUNG|asked to end|[Ee]rror\b|gave up|not so:|differs otherwise|^[\w.]+\.py: "
    places = [at for at, line in enumerate(lines) if re.search(said, line)]
    return [line[:400] for at in places[-8:] for line in lines[at:at + 2 if at != places[-1] else at + 40]] or [line[:400] for line in lines[-8:]]


def descendants(root):
    """Every process below this one."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text(errors="replace").rpartition(")")[2].split()[1])
        except OSError:
            continue
    found, new = set(), {root}
    while new:
        new = {pid for pid, parent in parents.items() if parent in new}
        found |= new
    return found


def command_of(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:200] or "a process that ends"
    except OSError:
        return "a process that is gone"
