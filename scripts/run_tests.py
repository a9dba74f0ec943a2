#!/usr/bin/env python3
"""run_tests.py PROGRAM [ARGUMENT ...]: runs a test program for cargo, and prints the seconds of each test.

The Makefile names it to cargo as the runner of its target. A runner is no part of what cargo compiles, so nothing is compiled anew for it. Programs without
libtest (`harness = false`), doctests, and libtest with a form of output that somebody asked for are run as they are.

Each test that ended is a line of JSON in the file that NAVIGATOR_TEST_TIMES names. When the program is asked to end, or dies, the tests that were running are named.
"""
import json
import mmap
import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

# Of libtest's own --help: a program that holds these words has libtest in it.
LIBTEST = b"Configure formatting of output"
# libtest gives JSON only where unstable options are allowed, which it asks of this variable. Cargo must not see it: it would compile all crates anew.
JSON = ("-Z", "unstable-options", "--format", "json", "--report-time")
# Arguments by which somebody asks for another form of output.
OTHER_FORMS = re.compile(r"(--list|--help|-h|--quiet|-q|--bench|--format|--logfile)(=.*)?")
EVENT = re.compile(r'\{ "type": "(?:suite|test)".* \}$')


def is_libtest(program):
    """Returns whether this program is one that cargo built of tests. rustdoc's programs are not asked: it calls them in a way of its own."""
    if Path(program).name.startswith("rust_out"):
        return False
    with open(program, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(LIBTEST) >= 0


def command_of_one_test(program, arguments):
    """The command that runs one test of this program alone, but for the test's name."""
    target = re.sub(r"-[0-9a-f]{16}$", "", Path(program).name)
    options = ["--", "--exact", *(["--ignored"] if "--ignored" in arguments else [])]
    # The unit tests of a crate of this workspace are named as the crate is.
    if target.startswith("navigator"):
        return ["cargo", "test", "-p", target.replace("_", "-"), "--lib"], options
    return ["cargo", "test", "--test", target], options


class TestRun:
    """One run of a program, told by its events."""

    def __init__(self, program, arguments):
        self.program, self.arguments = program, arguments
        self.command, self.options = command_of_one_test(program, arguments)
        self.running, self.failed = {}, []
        self.has_begun = self.has_ended = self.is_stopping = False
        path = os.environ.get("NAVIGATOR_TEST_TIMES")
        self.record = open(path, "a", encoding="utf-8") if path else None

    def say(self, *lines):
        print(*lines, sep="\n", flush=True)

    def note(self, name, seconds, outcome, output=""):
        if self.record:
            entry = {"test": name, "program": self.command[-1], "seconds": round(seconds, 3), "outcome": outcome,
                     "command": " ".join([*self.command, name, *self.options])}
            self.record.write(json.dumps(entry | ({"output": output} if output else {})) + "\n")
            self.record.flush()

    def run(self):
        """Returns the exit code of the program, or minus the signal that ended it; None when it would not give JSON."""
        asked, wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, _: os.write(wakes, bytes([number])))
        child = subprocess.Popen([self.program, *self.arguments, *JSON], stdout=subprocess.PIPE, env={**os.environ, "RUSTC_BOOTSTRAP": "1"})
        output, ended, rest = child.stdout.fileno(), os.pidfd_open(child.pid), b""
        os.set_blocking(output, False)
        poll = select.poll()
        for descriptor in (output, ended, asked):
            poll.register(descriptor, select.POLLIN)
        has_exited = False
        while not has_exited:
            ready = {descriptor for descriptor, _ in poll.poll()}
            # What the program left running may hold its output open for ever: after its end, one more read takes all that a pipe can hold.
            has_exited = ended in ready
            if output in ready or has_exited:
                data = self.read(output)
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    self.line(line.decode(errors="replace"))
                if not data and not has_exited:
                    poll.unregister(output)
            # After the output: only what was read says which tests are running.
            if asked in ready:
                self.end(child, os.read(asked, 1)[0])
        if rest:
            self.line(rest.decode(errors="replace"))
        code = child.wait()
        if code and not self.has_begun and not self.is_stopping:
            return None
        self.check_end(code)
        return code

    @staticmethod
    def read(descriptor):
        try:
            return os.read(descriptor, 1 << 20)
        except BlockingIOError:
            return b""

    def line(self, text):
        """An event, or words that a test or its children wrote past libtest, also before an event on the same line."""
        event = EVENT.search(text)
        try:
            entry = json.loads(event[0]) if event else None
        except ValueError:
            event = None
        if not event:
            return self.say(text)
        if event.start():
            self.say(text[:event.start()])
        (self.suite if entry["type"] == "suite" else self.test)(entry)

    def suite(self, entry):
        if entry["event"] == "started":
            self.has_begun = True
            return self.say("", f"running {entry['test_count']} test{'' if entry['test_count'] == 1 else 's'}")
        self.has_ended = True
        if self.failed:
            self.say("", "failures:", *(f"    {name}" for name in sorted(self.failed)))
        counts = "; ".join(f"{entry[key]} {key.replace('_', ' ')}" for key in ("passed", "failed", "ignored", "measured", "filtered_out"))
        self.say("", f"test result: {'ok' if entry['event'] == 'ok' else 'FAILED'}. {counts}; finished in {entry['exec_time']:.2f}s", "")

    def test(self, entry):
        name, event = entry["name"], entry["event"]
        if event == "started":
            self.running[name] = time.monotonic()
        elif event == "timeout":
            self.say(f"test {name} has been running for over 60 seconds")
        else:
            begun = self.running.pop(name, time.monotonic())
            seconds = entry.get("exec_time", time.monotonic() - begun)
            if event == "ignored":
                return self.say(f"test {name} ... ignored" + (f", {entry['message']}" if entry.get("message") else ""))
            output = "\n".join(text.strip("\n") for text in (entry.get("stdout"), entry.get("message")) if text)
            self.say(f"test {name} ... {'ok' if event == 'ok' else 'FAILED'} ({seconds:.3f} s)")
            if event != "ok":
                self.failed.append(name)
            if output:
                # At once, and not at the end: a program that is cut off has said what failed before.
                self.say(f"---- {name} stdout ----", output, "----")
            self.note(name, seconds, event, output if event != "ok" else "")

    def end(self, child, number):
        self.is_stopping = True
        self.say("", f"asked to end by {signal.Signals(number).name}; these tests were running:")
        for name, begun in self.running.items():
            seconds = time.monotonic() - begun
            self.say(f"test {name} ... running for {seconds:.0f} s")
            self.note(name, seconds, "running")
        self.running.clear()
        child.send_signal(number)

    def check_end(self, code):
        """Reports tests whose end libtest did not: the program died, or words of another process damaged a line."""
        ending = f"code {code}" if code >= 0 else signal.Signals(-code).name
        if self.running:
            end = f"the test program ended with {ending} while these tests ran: {', '.join(self.running)}"
            for name, begun in self.running.items():
                self.say(f"test {name} ... FAILED: {end}")
                self.note(name, time.monotonic() - begun, "failed", end)
        if self.has_begun and not self.has_ended:
            self.say("", f"test result: FAILED. The test program ended with {ending} before its last test did", "")


def main():
    program, *arguments = sys.argv[1:]
    if not any(OTHER_FORMS.fullmatch(argument) for argument in arguments) and is_libtest(program):
        code = TestRun(program, arguments).run()
        if code is not None:
            if code < 0:
                signal.signal(-code, signal.SIG_DFL)
                os.kill(os.getpid(), -code)
            sys.exit(code)
        print("run_tests.py: this libtest gives no JSON, so the seconds of its tests are not known", flush=True)
    os.execv(program, [program, *arguments])


if __name__ == "__main__":
    main()
