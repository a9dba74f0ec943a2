"""Runs commands as steps, for ci.py and full.py: side by side as far as the machine carries them, each with a log, a limit and its processor seconds.

Owns when a step begins, and the folders of the last three runs. Knows no step by name. What holds a step to its limit is supervisor.py; what is said at the
end is report.py.
"""
import contextlib
import fcntl
import json
import os
import shutil
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import report
from supervisor import FAILED, GRACE, KILLING, LEFT_OUT, PASSED, ROOT, Supervisor  # noqa: F401: ROOT is for those who have steps

# Processors by which steps may ask for more than there are: what a step asks for is an average, and what is shared is not lost.
SLACK = 0.5
# Runs whose logs are kept.
KEPT_RUNS = 3


@dataclass(frozen=True)
class Step:
    """A command, and the steps that must have passed before. `cores`: processors that it keeps busy; `memory`: GiB; `minutes`: its limit, about three times
    what it takes; `alone`: no step that has one of these words, too, runs beside it; `nice`: how far it steps back for others; `first`: a regular expression of
    its log's line from which on the limit counts."""

    name: str
    command: str
    after: tuple = ()
    minutes: float = 20
    cores: float = 1.0
    memory: float = 2
    alone: frozenset = frozenset()
    nice: int = 0
    first: str | None = None


@dataclass(frozen=True)
class Machine:
    """Processors, and GiB of memory that nobody uses, as this process may use them."""

    cores: float
    memory: float

    @classmethod
    def here(cls):
        cores = float(len(os.sched_getaffinity(0)))
        memory = next(int(line.split()[1]) for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable"))
        gibibytes = memory / 2**20
        group = next((line.rpartition(":")[2] for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::")), "/")
        folder = Path("/sys/fs/cgroup") / group.lstrip("/")
        for place in (folder, *folder.parents):
            with contextlib.suppress(OSError, ValueError):
                quota, period = (place / "cpu.max").read_text().split()
                cores = min(cores, int(quota) / int(period))
            with contextlib.suppress(OSError, ValueError):
                free = int((place / "memory.max").read_text()) - int((place / "memory.current").read_text())
                gibibytes = min(gibibytes, free / 2**30)
        return cls(cores, gibibytes)


@dataclass(frozen=True)
class Ended:
    """A line of the table: seconds since the beginning of all, seconds by the clock, processor seconds, and why it ended as it did."""

    name: str
    begun: float
    took: float
    processor: float
    outcome: str
    reason: str = ""
    left_running: tuple = ()

    def row(self):
        return f"{self.name}\t{self.begun:.0f}\t{self.took:.0f}\t{self.processor:.0f}\t{self.outcome}\n"


class Run:
    """Steps on their way. Calls `on_end` with each that ended.

    A step begins when the machine has what it asks for. The first of the list that may begin and has no room yet is promised the moment at which it will have:
    a later step begins before it only if that leaves the promise untouched, because it will have ended by then or has room beside it. So gaps are filled, and
    small steps cannot keep a large one waiting for ever (batch schedulers call this backfilling). What a step takes is what it took when it last passed here.
    """

    def __init__(self, steps, logs, minutes, again, on_end=lambda ended: None, machine=None):
        self.waiting, self.logs, self.minutes, self.again, self.on_end = list(steps), logs, minutes, again, on_end
        self.machine = machine or Machine.here()
        self.running, self.ended, self.left_mounted = {}, [], []
        self.begun = time.monotonic()
        self.ends = self.begun + minutes * 60
        self.is_stopping = False

    def main(self):
        """Runs all, says how it ended, and returns the exit code."""
        passed = self.all()
        print(report.write(self), flush=True)
        return 0 if passed else 1

    def say(self, text):
        print(f"=== {text} ({time.monotonic() - self.begun:.0f} s)", flush=True)

    def all(self):
        """Runs them; true when all passed. One that fails hides nothing of the others, but nothing comes after it."""
        with locked(self.logs.parent / "run.lock"):
            self.folder = new_folder(self.logs)
            self.table = self.folder / "times.tsv"
            self.table.touch()
            self.read_seconds()
            mounted = mounts()
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, self.stop)
            self.begin_some()
            while self.running:
                pid, status = os.wait()
                if pid in self.running:
                    self.finish(*self.running.pop(pid), status)
                    self.begin_some()
            self.left_mounted = sorted(mounts() - mounted)
        return all(one.outcome == PASSED for one in self.ended) and not self.left_mounted

    def read_seconds(self):
        self.seconds = {}
        with contextlib.suppress(OSError, ValueError):
            self.seconds = json.loads((self.logs / "seconds.json").read_text())

    def expected(self, step):
        """Seconds that it took when it last passed here; of one that never did, the part of its limit that steps commonly take."""
        return self.seconds.get(step.name, step.minutes * 60 / 3)

    def begin_some(self):
        passed = {one.name for one in self.ended if one.outcome == PASSED}
        first = None
        for step in list(self.waiting):
            if reason := self.reason_to_leave_out(step, passed):
                self.waiting.remove(step)
                self.end(Ended(step.name, time.monotonic() - self.begun, 0, 0, LEFT_OUT, reason))
            elif passed.issuperset(step.after):
                if self.fits(step, [one for one, _ in self.running.values()]) and not (first and self.delays(step, first)):
                    self.waiting.remove(step)
                    self.begin(step)
                elif first is None:
                    first = step

    def reason_to_leave_out(self, step, passed):
        lost = {one.name for one in self.ended} - passed
        if self.is_stopping:
            return "the run was stopped"
        if missing := [name for name in step.after if name in lost]:
            return f"it comes after {' and '.join(missing)}"
        left = self.ends - time.monotonic()
        if left < self.expected(step):
            return f"{max(left, 0) / 60:.0f} minutes were left of the run's {self.minutes:.0f}, and it takes {self.expected(step) / 60:.0f}"
        return None

    def fits(self, step, others):
        """One that asks for more than the machine has runs when nothing else does."""
        return not others or (not any(step.alone & one.alone for one in others)
                              and step.cores + sum(one.cores for one in others) <= self.machine.cores + SLACK
                              and step.memory + sum(one.memory for one in others) <= self.machine.memory)

    def delays(self, step, first):
        """Returns whether `first`, which waits for room, would wait longer for this step."""
        now = time.monotonic()
        ends = sorted(((max(now, begun + self.expected(one)), one) for one, begun in self.running.values()), key=lambda end: end[0])
        moment = now
        while not self.fits(first, [one for _, one in ends]):
            moment = ends.pop(0)[0]
        return now + self.expected(step) > moment and not self.fits(step, [first, *(one for _, one in ends)])

    def begin(self, step):
        self.say(f"{step.name} begins: {step.command}")
        begun = time.monotonic()
        supervisor = Supervisor(step, self.folder, begun - self.begun, self.ends, self.minutes)
        # No signal comes between the fork and the supervisor's own handlers.
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
        pid = os.fork()
        if pid == 0:
            try:
                supervisor.run()
            finally:
                os._exit(0)
        self.running[pid] = (step, begun)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))

    def finish(self, step, begun, status):
        took = time.monotonic() - begun
        path = self.folder / f"{step.name}.json"
        try:
            end = json.loads(path.read_text())
            path.unlink()
        except (OSError, ValueError):
            end = {"outcome": FAILED, "reason": f"its supervisor ended with {os.waitstatus_to_exitcode(status)}", "processor": 0, "left_running": {}}
        left_running = tuple(f"process {pid}: {command}" for pid, command in end["left_running"].items())
        if end["outcome"] == PASSED:
            self.seconds[step.name] = round(took)
            (self.logs / "seconds.json").write_text(json.dumps(self.seconds))
        self.end(Ended(step.name, begun - self.begun, took, end["processor"], end["outcome"], end["reason"], left_running))

    def end(self, ended):
        self.ended.append(ended)
        with open(self.table, "a", encoding="utf-8") as table:
            table.write(ended.row())
        if ended.outcome == PASSED:
            self.say(f"{ended.name} passed in {ended.took:.0f} s, {ended.processor:.0f} processor seconds")
        elif ended.outcome == LEFT_OUT:
            self.say(f"{ended.name} left out: {ended.reason}")
        else:
            self.say(f"{ended.name} {ended.outcome} after {ended.took:.0f} s" + (f": {ended.reason}" if ended.reason else ""))
            print(*report.last_lines(self.folder / f"{ended.name}.log", 20), sep="\n", flush=True)
        self.on_end(ended)

    def stop(self, *_):
        self.is_stopping = True
        for pid in self.running:
            os.kill(pid, signal.SIGTERM)


@contextlib.contextmanager
def locked(path):
    """One run at a time in a checkout: they share what is built. Supervisors hold the lock, too, so it is free when the last process of a run is gone, and the
    next run waits for what a killed one takes down."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+", encoding="utf-8") as file:
        ends = None
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                pass
            file.seek(0)
            holder = file.read().strip() or "unknown"
            ends = ends or time.monotonic() + GRACE + KILLING
            if Path(f"/proc/{holder}").exists() or time.monotonic() > ends:
                sys.exit(f"another run goes on in this checkout, process {holder}: wait for its end, or stop it with `kill {holder}`")
            time.sleep(0.2)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def new_folder(logs):
    """A folder for this run's logs, with the next number, to which `last` leads. Those of older runs than the last three go."""
    logs.mkdir(parents=True, exist_ok=True)
    numbers = sorted(int(entry.name) for entry in logs.iterdir() if entry.name.isdigit())
    for old in numbers[:max(0, len(numbers) - KEPT_RUNS + 1)]:
        shutil.rmtree(logs / str(old))
    folder = logs / str(max(numbers, default=0) + 1)
    folder.mkdir()
    link = logs / "last.new"
    link.unlink(missing_ok=True)
    link.symlink_to(folder.name)
    link.rename(logs / "last")
    return folder


def mounts():
    """What is mounted in this checkout, or where its test bed lies. Mounts elsewhere may be of anybody."""
    places = [f"{ROOT}/", f"{Path(os.environ.get('NAVIGATOR_TESTBED', ROOT)).resolve()}/"]
    points = {line.split()[4].replace("\\040", " ") for line in Path("/proc/self/mountinfo").read_text().splitlines()}
    return {point for point in points if any(point.startswith(place) for place in places)}
