#!/usr/bin/env python3
"""steps.py: what scripts/steps.py, supervisor.py and report.py promise of steps: order, room, limits, nothing left behind, and a page that says what failed.

Steps wait for each other's files, not for time; where time must pass, it is short or counted from a line of the log, so a slow machine changes nothing.
"""
import contextlib
import io
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))
import report  # noqa: E402
import steps  # noqa: E402
import supervisor  # noqa: E402
from steps import Machine, Run, Step  # noqa: E402
from supervisor import CUT, FAILED, LEFT_OUT, LEFT_RUNNING, PASSED, STOPPED  # noqa: E402

# Works for half a second of a processor, in a process that let go of its step where it comes after setsid.
BUSY = "python3 -c 'import os\nwhile sum(os.times()[:2]) < 0.5: pass'"


def bash(text):
    return "bash -c " + shlex.quote(text)


class Steps(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.place = Path(folder.name)
        self.logs = self.place / "ci"

    def run_steps(self, *wanted, minutes=30, seconds=None, machine=Machine(64, 64), **constants):
        """What became of steps by name, and all that was said. `seconds`: what steps took when they last passed."""
        self.logs.mkdir(exist_ok=True)
        if seconds:
            (self.logs / "seconds.json").write_text(json.dumps(seconds))
        with contextlib.ExitStack() as stack:
            # (what waits in vain ends within the patience of who runs this)
            for name, value in {"WAITING": 120, **constants}.items():
                stack.enter_context(mock.patch.object(supervisor, name, value))
            said = stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
            self.run_object = Run(wanted, self.logs, minutes, "make ci STEPS={}", machine=machine)
            self.code = self.run_object.main()
        return {one.name: one for one in self.run_object.ended}, said.getvalue()

    def meets(self, name, *others):
        """Ends when the others run, too."""
        return bash(f"touch {self.place}/{name}; " + "".join(f"until [ -e {self.place}/{other} ]; do sleep 0.05; done; " for other in others))

    def excludes(self, word):
        """Fails when another that excludes it is running."""
        return bash(f"mkdir {self.place}/{word} && sleep 0.2 && rmdir {self.place}/{word}")


class Order(Steps):
    def test_what_comes_after_a_failure_is_left_out_and_the_rest_is_not(self):
        ended, said = self.run_steps(Step("bad", bash("echo why; exit 3")), Step("next", "true", ("bad",)), Step("last", "true", ("next",)), Step("other", "true"))
        self.assertEqual({name: one.outcome for name, one in ended.items()}, {"bad": FAILED, "next": LEFT_OUT, "last": LEFT_OUT, "other": PASSED})
        self.assertEqual(self.code, 1)
        self.assertIn("next left out: it comes after bad\n", said)
        self.assertRegex(said.splitlines()[-1], r"did not pass: bad FAILED, next left out, last left out")

    def test_steps_run_beside_each_other_where_the_machine_has_room(self):
        ended, said = self.run_steps(Step("one", self.meets("one", "two"), cores=1, minutes=5), Step("two", self.meets("two", "one"), cores=1.5, minutes=5),
                                     machine=Machine(2, 4))
        self.assertEqual([one.outcome for one in ended.values()], [PASSED, PASSED])
        self.assertEqual(self.code, 0)
        self.assertIn("=== all of it passed (", said.splitlines()[-1])

    def test_steps_that_need_more_than_there_is_run_one_after_the_other(self):
        for needs in ({"cores": 1.5}, {"memory": 3}, {"alone": frozenset({"bed"})}):
            ended, _ = self.run_steps(*(Step(name, self.excludes("room"), **needs) for name in ("one", "two", "three")), machine=Machine(2, 4))
            self.assertEqual([one.outcome for one in ended.values()], [PASSED] * 3, needs)
            self.assertEqual(list(ended), ["one", "two", "three"])

    def test_one_that_needs_more_than_the_machine_has_runs_by_itself(self):
        ended, _ = self.run_steps(Step("small", self.excludes("machine"), cores=0.1), Step("huge", self.excludes("machine"), cores=64, memory=999), machine=Machine(2, 4))
        self.assertEqual([one.outcome for one in ended.values()], [PASSED, PASSED])

    def begins(self, seconds, running, *waiting):
        """Which of these begin on a machine of two processors while others run."""
        one = Run(waiting, self.logs, 600, "{}", machine=Machine(2, 64))
        one.seconds, one.running = seconds, {number: (step, time.monotonic()) for number, step in enumerate(running)}
        begun = []

        def begin(step):
            begun.append(step.name)
            one.running[step.name] = (step, time.monotonic())
        with mock.patch.object(one, "begin", begin):
            one.begin_some()
        return begun

    def test_gaps_are_filled_by_what_delays_no_earlier_step(self):
        large, quick, slow = Step("large", "", cores=2), Step("quick", "", cores=1), Step("slow", "", cores=1)
        seconds = {"runs": 600, "quick": 60, "slow": 3000}
        self.assertEqual(self.begins(seconds, [Step("runs", "", cores=1.5)], large, slow, quick), ["quick"])
        # Beside the large one it has room, too: it takes nothing from it.
        self.assertEqual(self.begins(seconds, [Step("runs", "", cores=1.5)], large, Step("slow", "", cores=0.5)), ["slow"])
        # Who waits for a word waits for its holder, and no longer.
        bed = frozenset({"bed"})
        self.assertEqual(self.begins(seconds, [Step("runs", "", alone=bed)], Step("large", "", alone=bed), Step("slow", "", alone=bed), quick), ["quick"])

    def test_small_steps_keep_no_large_one_waiting(self):
        # What runs is over its time: whatever begins now would be waited for.
        self.assertEqual(self.begins({"runs": 0, "quick": 1}, [Step("runs", "", cores=1.5)], Step("large", "", cores=2), Step("quick", "", cores=1)), [])

    def test_the_machine_is_what_this_process_may_use(self):
        here = Machine.here()
        self.assertTrue(0 < here.cores <= len(os.sched_getaffinity(0)) and here.memory > 0, here)


class Limits(Steps):
    def test_one_that_runs_out_of_time_is_cut_and_not_failed(self):
        # It has said its words when its time begins.
        step = Step("deaf", bash("trap '' TERM; echo waits for nothing; sleep 600"), minutes=0.001, first="^waits")
        ended, said = self.run_steps(step, Step("other", "true"), GRACE=1)
        self.assertEqual((ended["deaf"].outcome, ended["other"].outcome, self.code), (CUT, PASSED, 1))
        self.assertIn("deaf CUT after", said)
        self.assertIn("its own limit of 0.001 minutes was over, from its first test on", said)
        self.assertIn("waits for nothing\n", said)
        self.assertNotIn("FAILED", said)

    def test_the_limit_counts_from_the_first_test(self):
        ended, _ = self.run_steps(Step("waits", bash("sleep 1; echo; echo begins; sleep 600"), minutes=0.001, first="^begins$"))
        self.assertEqual(ended["waits"].outcome, CUT)
        self.assertGreater(ended["waits"].took, 1)
        ended, _ = self.run_steps(Step("waits", bash("echo -n beg; sleep 0.3; echo ins; exec sleep 600"), minutes=0.001, first="^begins$"))
        self.assertIn("from its first test on", ended["waits"].reason)

    def test_one_that_never_says_its_first_line_has_an_end(self):
        ended, _ = self.run_steps(Step("mute", "sleep 600", first="a word"), WAITING=0.5)
        self.assertEqual(ended["mute"].outcome, CUT)
        self.assertIn("it said no line like 'a word'", ended["mute"].reason)

    def test_one_that_is_cut_may_put_away_what_it_set_up(self):
        ended, _ = self.run_steps(Step("tidy", bash("trap 'echo puts away' EXIT; echo up; sleep 600"), minutes=0.001, first="up"))
        self.assertEqual(ended["tidy"].outcome, CUT)
        log = (self.run_object.folder / "tidy.log").read_text()
        self.assertIn("puts away", log)
        self.assertNotIn("killed", log)

    def test_the_end_of_the_run_is_not_the_fault_of_a_step(self):
        ended, said = self.run_steps(Step("long", "sleep 600", minutes=60), Step("after", "true", ("long",)), minutes=0.02, seconds={"long": 0})
        self.assertEqual((ended["long"].outcome, ended["after"].outcome), (CUT, LEFT_OUT))
        self.assertIn("long CUT after", said)
        self.assertIn("the run's 0 minutes were over", ended["long"].reason)

    def test_what_could_not_end_in_time_is_not_begun(self):
        ended, said = self.run_steps(Step("slow", "true"), Step("quick", "true", minutes=1), seconds={"slow": 7200})
        self.assertEqual((ended["slow"].outcome, ended["quick"].outcome, self.code), (LEFT_OUT, PASSED, 1))
        self.assertIn("slow left out: 30 minutes were left of the run's 30, and it takes 120", said)

    def test_a_run_that_is_stopped_says_so(self):
        ended, _ = self.run_steps(Step("long", bash(f"kill -TERM {os.getpid()}; sleep 600")), Step("after", "true", ("long",)))
        self.assertEqual((ended["long"].outcome, ended["after"].outcome, self.code), (STOPPED, LEFT_OUT, 1))
        self.assertEqual(ended["after"].reason, "the run was stopped")

    def test_a_program_that_is_not_there_fails(self):
        ended, said = self.run_steps(Step("none", "THIS=that make"))
        self.assertEqual(ended["none"].outcome, FAILED)
        self.assertIn("THIS=that make: [Errno 2] No such file", said)


class Remains(Steps):
    def test_what_is_left_running_is_killed_and_fails_the_step(self):
        ended, said = self.run_steps(Step("careless", bash(f"(setsid sleep 600 & echo $! >{self.place}/pid); echo done")), LINGER=0.5)
        pid = (self.place / "pid").read_text().strip()
        self.assertEqual((ended["careless"].outcome, self.code), (LEFT_RUNNING, 1))
        self.assertRegex(said, r"left running +process \d+: sleep 600\n")
        self.assertFalse(Path(f"/proc/{pid}").exists())

    def test_what_ends_soon_after_its_step_is_no_fault(self):
        ended, _ = self.run_steps(Step("daemon", bash("(setsid sleep 0.3 &)")))
        self.assertEqual(ended["daemon"].outcome, PASSED)

    def test_one_that_failed_and_left_something_has_failed(self):
        ended, said = self.run_steps(Step("both", bash("setsid sleep 600 & exit 1")), LINGER=0.2)
        self.assertEqual(ended["both"].outcome, FAILED)
        self.assertRegex(said, r"left running +process \d+: sleep 600\n")

    def test_what_is_left_mounted_fails_the_run(self):
        with mock.patch.object(steps, "mounts", side_effect=[{"/before"}, {"/before", "/after"}]):
            _, said = self.run_steps(Step("good", "true"))
        self.assertEqual(self.code, 1)
        self.assertIn("\n  umount /after\n", said)

    def test_mounts_of_this_checkout_are_looked_at(self):
        inside, lines = f"{steps.ROOT}/.testbed/x", "1 2 0:1 / {} rw - tmpfs tmpfs rw\n"
        with mock.patch.object(Path, "read_text", return_value=lines.format(inside) + lines.format("/proc")):
            self.assertEqual(steps.mounts(), {inside})

    def test_processor_seconds_are_those_of_daemons_too(self):
        ended, said = self.run_steps(Step("idle", "sleep 0.5"), Step("daemon", bash(f"(setsid {BUSY} &); {BUSY}")), LINGER=300)
        self.assertLess(ended["idle"].processor, 0.4)
        self.assertGreater(ended["daemon"].processor, 0.9)
        self.assertRegex(said, r"\n +\d+ +\d+ +[1-9]\d*  passed +daemon\n")


class Folders(Steps):
    def test_logs_of_three_runs_are_kept(self):
        folders = []
        for _ in range(4):
            self.run_steps(Step("one", "true"))
            folders.append(self.run_object.folder)
        runs = sorted(entry for entry in self.logs.iterdir() if entry.name.isdigit())
        self.assertEqual(runs, folders[1:])
        self.assertEqual((self.logs / "last").resolve(), folders[-1].resolve())
        self.assertTrue(all((folder / name).exists() for folder in runs for name in ("one.log", "times.tsv", "report.txt", "tests.tsv")))

    def test_a_second_run_is_refused_in_one_line(self):
        with steps.locked(self.place / "run.lock"), self.assertRaises(SystemExit) as refused:
            self.run_steps(Step("one", "true"))
        self.assertEqual(str(refused.exception), f"another run goes on in this checkout, process {os.getpid()}: wait for its end, or stop it with `kill {os.getpid()}`")
        self.assertEqual(self.run_steps(Step("one", "true"))[0]["one"].outcome, PASSED)

    def test_a_run_that_was_killed_leaves_nothing_and_is_started_again(self):
        program = (f"import sys; from pathlib import Path; sys.path.insert(0, {str(SCRIPTS)!r}); from steps import *; import supervisor; supervisor.LINGER = 0.5; "
                   f"Run([Step('one', sys.argv[1])], Path({str(self.logs)!r}), 9, '').all()")
        step = bash(f"(setsid sleep 600 & echo $! >{self.place}/part; mv {self.place}/part {self.place}/pid); sleep 600")
        killed = subprocess.Popen([sys.executable, "-c", program, step], stdout=subprocess.DEVNULL)
        while not (self.place / "pid").exists():
            self.assertIsNone(killed.poll())
            time.sleep(0.02)
        killed.kill()
        killed.wait()
        self.assertEqual(self.run_steps(Step("one", "true"))[0]["one"].outcome, PASSED)
        self.assertFalse(Path(f"/proc/{(self.place / 'pid').read_text().strip()}").exists())


class Page(Steps):
    def failure(self, log, *record):
        return report.failures(log, record, "make ci STEPS=x")

    def test_it_says_the_first_failure_and_the_command_that_runs_it_alone(self):
        record = {"test": "room::file::name", "seconds": 1.5, "outcome": "failed", "command": "cargo test --test it room::file::name -- --exact",
                  "output": "words\nthread 'room::file::name' (7) panicked at tests/it/x.rs:3:5:\nthe pilot is there: not within 300s; last seen: nobody\n"
                            "stack backtrace:\n   0: a\n             at b\nnote: run with `RUST_BACKTRACE=full`"}
        other = {"test": "other", "seconds": 0.25, "outcome": "failed", "command": "cargo test -p navigator --lib other", "output": "Error: \"no\""}
        text = "\n".join(map(json.dumps, (record, other)))
        step = Step("test", bash(f"echo {shlex.quote(text)} >$NAVIGATOR_TEST_TIMES; echo error: of a test that passes; exit 1"))
        _, said = self.run_steps(step)
        self.assertRegex(said, r"(?m)^test FAILED after \d+ s\n"
                               r"  first failure  room::file::name\n"
                               r"  expected       the pilot is there, within 300s \(tests/it/x.rs:3:5\)\n"
                               r"  last seen      nobody\n"
                               r"  alone          cargo test --test it room::file::name -- --exact\n"
                               r"  and 1 more     other\n"
                               r"  the step       make ci STEPS=test\n"
                               r"  log            \S+/test.log\n")
        self.assertEqual(said.rstrip("\n").partition("\n=== seconds")[2].count("of a test that passes"), 0)
        self.assertIn("      1.5 s  test: room::file::name (failed)\n      0.2 s  test: other (failed)\n", said)
        self.assertIn("test: 2 tests, 2 failed\n", said)
        self.assertTrue(said.endswith((self.run_object.folder / "report.txt").read_text()))

    def test_tests_that_ran_when_time_was_over_are_named(self):
        entry = json.dumps({"test": "room::slow", "seconds": 61, "outcome": "running", "command": "cargo test --test it room::slow -- --exact"})
        (self.place / "entry").write_text(entry)
        step = Step("test", bash(f"trap 'cp {self.place}/entry $NAVIGATOR_TEST_TIMES; exit 1' TERM; echo up; sleep 600 & wait"), minutes=0.001, first="up")
        _, said = self.run_steps(step)
        self.assertIn("  was running    room::slow, for 61 s\n  alone          cargo test --test it room::slow -- --exact\n", said)
        self.assertIn("test: 1 tests, 1 cut off\n", said)

    def test_words_of_a_test_that_libtest_did_not_keep_are_in_the_log(self):
        log = "thread 'a::b' (7) panicked at x.rs:1:2:\nnot kept\nthread 'other' panicked at y.rs:1:2:\nno\n"
        (only,) = self.failure(log, {"test": "a::b", "outcome": "failed", "command": "c"})
        self.assertEqual((only.expected, only.seen), ("no panic (x.rs:1:2)", "not kept\n"))

    def test_rows_of_jobs_stand_in_the_table(self):
        line = r"  a_job\t1\t7\t\tFAILED\n  half"
        _, said = self.run_steps(Step("e2e", bash(f"printf '{line}' >>$NAVIGATOR_TIMES")))
        self.assertIn("      1       7             FAILED          a_job\n", said)

    def test_jobs_of_e2e(self):
        log = ("=== leaving_job\n[    1.0 s] --- a node leaves\n[   90.0 s] FAILED: gave up after 300 s waiting for the node to go; last seen: demo: Ready=False\nmore\n"
               "[   91.0 s] logs are in x\n==> a.log\nFAILED: what a component said\n=== api_job\n[    2.0 s] --- asks\n[    3.0 s] FAILED: not so: it answers; seen: 503\n")
        first, second = self.failure(log)
        self.assertEqual((first.name, first.expected, first.seen, first.command),
                         ("leaving_job: a node leaves", "the node to go, within 300 s", "demo: Ready=False\nmore", "make e2e JOBS=leaving_job"))
        self.assertEqual((second.name, second.expected, second.seen), ("api_job: asks", "it answers", "503"))

    def test_scenarios_of_databases(self):
        log = ("cassandra-life\n   12.0 s  a ring\ncassandra-life: passed in 300 s\ncassandra-secure\nthread 'main' (7) panicked at a.rs:1:2:\n"
               "assertion `left == right` failed: rows\n  left: 1\n right: 2\ncassandra-secure: FAILED in 3 s\n")
        (only,) = self.failure(log)
        self.assertEqual((only.name, only.expected, only.seen.split(), only.command),
                         ("cassandra-secure", "left == right: rows (a.rs:1:2)", ["left:", "1", "right:", "2"], "cargo test --test databases cassandra-secure"))
        self.assertEqual(report.open_stage(log + "cassandra-hang\n    1.0 s  it hangs\n"), "cassandra-hang")

    def test_histories_python_the_compiler_and_the_rest(self):
        (history,) = self.failure("history 6: x\n  as promised\nhistory 7: x\n  WRONG: a read of the past\n")
        self.assertEqual((history.seen, history.command), ("a read of the past", "HISTORY_SEED=7 make test-history"))
        (error,) = self.failure("[   1.0 s] --- up\nTraceback (most recent call last):\n  File\n__main__.Failed: not within 900 s: it is up; last seen: no\n")
        self.assertEqual((error.name, error.expected, error.seen.strip()), ("up", "it is up, within 900 s", "no"))
        (unit,) = self.failure("=" * 70 + "\nFAIL: test_a (x.A.test_a)\n" + "-" * 70 + "\nTraceback (most recent call last):\n  File\nAssertionError: 1 != 2\n\n" + "-" * 70 + "\n")
        self.assertEqual((unit.name, unit.seen), ("test_a", "AssertionError: 1 != 2"))
        (compiler,) = self.failure("error[E0308]: mismatched types\n  --> src/a.rs:1:2\n")
        self.assertEqual((compiler.name, compiler.seen), ("src/a.rs:1:2", "error[E0308]: mismatched types"))
        (rest,) = self.failure("one\ntwo\nmake: *** [x] Error 1\n")
        self.assertEqual(rest.seen, "one\ntwo")

    def test_stages_are_timed(self):
        log = "=== a_job\n[    1.0 s] --- installs\n[    7.0 s]     done in 6.1 s\n[    1.0 s] === cassandra\n[   31.5 s] === cassandra ok\n"
        self.assertEqual(list(report.stages(log)), [(6.1, "a_job: installs"), (30.5, "cassandra")])


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    unittest.main(verbosity=2)
