"""The first process of a step: starts its command, holds it to its limit, and leaves nothing of it.

It adopts whatever the step's programs leave behind, daemons and containers too, counts their processor seconds when they end, and ends them with the step.
So no process of a step, and no port on which one listens, is left when the supervisor has ended. What became of the step is in STEP.json in the run's folder.
"""
import contextlib
import ctypes
import json
import os
import re
import shlex
import signal
import subprocess
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
# Seconds that a step gets after it was asked to end, to take down what it set up.
GRACE = 60
# Seconds that processes get which outlive their step, to end by themselves.
LINGER = 10
# Seconds after which a killed process is left to the kernel, which holds it.
KILLING = 30
# Seconds that a step with a `first` may take until that line, beside the limit of the run.
WAITING = 45 * 60
PASSED, FAILED, CUT, STOPPED, LEFT_RUNNING, LEFT_OUT = "passed", "FAILED", "CUT", "STOPPED", "LEFT RUNNING", "left out"


class Supervisor:
    """Ends when nothing of its step is left. `run_ends`: the second, by time.monotonic(), at which the whole run does; `run_minutes`: how many it had."""

    def __init__(self, step, folder, begun, run_ends, run_minutes):
        self.run_pid = os.getpid()
        self.step, self.folder, self.begun, self.run_ends, self.run_minutes = step, folder, begun, run_ends, run_minutes
        self.outcome, self.reason, self.processor, self.is_stopped = None, "", 0.0, False
        self.left_running = {}
        # Until its first line a step has the time that waiting may take; from then on, its own.
        self.has_limit = step.first is None
        self.due = time.monotonic() + (step.minutes * 60 if self.has_limit else WAITING)

    def run(self):
        signal.signal(signal.SIGTERM, self.stop)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        libc = ctypes.CDLL(None)
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != self.run_pid:
            self.stop()
        # A session of its own: Linux gives each an equal share of the processors, and nice counts within one only.
        os.setsid()
        os.nice(self.step.nice)
        with contextlib.suppress(OSError):
            Path("/proc/self/autogroup").write_text(str(self.step.nice))
        path = self.folder / f"{self.step.name}.log"
        with open(path, "w", encoding="utf-8") as self.log, open(path, "rb") as self.written:
            self.start()
            while self.reap():
                self.look_for_first_line()
                if time.monotonic() > min(self.due, self.run_ends if self.outcome is None else self.due):
                    self.end()
                time.sleep(0.03)
        ended = {"outcome": self.outcome, "reason": self.reason, "processor": self.processor, "left_running": self.left_running}
        (self.folder / f"{self.step.name}.json").write_text(json.dumps(ended))

    def start(self):
        environment = {**os.environ, "NAVIGATOR_TIMES": str(self.folder / "times.tsv"), "NAVIGATOR_BEGUN": f"{self.begun:.0f}",
                       "NAVIGATOR_TEST_TIMES": str(self.folder / f"{self.step.name}.tests")}
        try:
            # The object is kept in self: Popen's destructor would wait for the process beside reap().
            self.process = subprocess.Popen(shlex.split(self.step.command), cwd=ROOT, env=environment, stdin=subprocess.DEVNULL,
                                            stdout=self.log, stderr=self.log, process_group=0)
        except OSError as error:
            self.say(f"{self.step.command}: {error}")
            self.outcome = FAILED

    def stop(self, *_):
        self.is_stopped, self.due = True, 0

    def say(self, text):
        self.log.write(f"=== {text}\n")
        self.log.flush()

    def look_for_first_line(self):
        """The step's own limit counts from the first line that matches `first`: what it waits for before that is not its work."""
        while not self.has_limit and not self.is_stopped:
            place, line = self.written.tell(), self.written.readline()
            if not line.endswith(b"\n"):
                self.written.seek(place)
                break
            if re.search(self.step.first, line.decode(errors="replace")):
                self.has_limit, self.due = True, time.monotonic() + self.step.minutes * 60

    def reap(self):
        """Counts what ended; false when nothing is left."""
        try:
            while (ended := os.wait3(os.WNOHANG))[0]:
                pid, status, used = ended
                self.processor += used.ru_utime + used.ru_stime
                if pid == self.process.pid:
                    self.outcome = self.outcome or (PASSED if status == 0 else FAILED)
                    self.due = time.monotonic() + LINGER
            return self.outcome is None or time.monotonic() < self.due + KILLING
        except ChildProcessError:
            return False

    def end(self):
        """Asks the step to end, and kills what is left of one that was asked or ended."""
        if self.outcome is None:
            self.outcome, self.reason = (STOPPED, "the run was stopped") if self.is_stopped else (CUT, self.limit())
            self.due = time.monotonic() + GRACE
            self.say(f"asked to end: {self.reason}")
            os.killpg(self.process.pid, signal.SIGTERM)
            return
        for pid in descendants(os.getpid()):
            if pid not in self.left_running and (command := command_of(pid)):
                self.left_running[pid] = command
                self.say(f"killed, for it was left running: process {pid}, {command}")
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.outcome == PASSED and self.left_running and not self.is_stopped:
            self.outcome, self.reason = LEFT_RUNNING, f"its programs ended well, and left processes running for {LINGER} s more"

    def limit(self):
        """Whose limit it was."""
        if time.monotonic() > self.run_ends:
            return f"the run's {self.run_minutes:.0f} minutes were over"
        if not self.has_limit:
            return f"in {WAITING // 60:.0f} minutes it said no line like {self.step.first!r}, from which its own limit counts"
        return f"its own limit of {self.step.minutes:g} minutes was over" + (", from its first test on" if self.step.first else "")


def descendants(root):
    """Every process below this one."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text(errors="replace").rpartition(")")[2].split()[1])
        except OSError:
            continue
    below, new = set(), {root}
    while new:
        new = {pid for pid, parent in parents.items() if parent in new}
        below |= new
    return below


def command_of(pid):
    """What a process was started with; empty for one that has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()[:200]
    except OSError:
        return ""
