#!/usr/bin/env python3
"""steps.py: what scripts/steps.py promises of steps: order, deadlines, nothing left behind, processor seconds of daemons too."""
import contextlib
import io
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
import full  # noqa: E402
import steps  # noqa: E402
from steps import Run, Step  # noqa: E402

steps.GRACE, steps.LINGER = 2, 1
# A daemon: the second `setsid` lets go of it. It ends after as much work as this.
BUSY = "python3 -c 'import os\nwhile sum(os.times()[:2]) < 1.5: pass'"


def bash(text):
    return "bash -c " + steps.shlex.quote(text)


def run(*wanted, at_once=4, minutes=1.0):
    """What became of steps by name, and all that was said."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as said:
        one = Run(wanted, Path(folder), at_once, minutes)
        one.all()
        one.report()
        return {ended.name: ended for ended in one.ended}, said.getvalue()


class Steps(unittest.TestCase):
    def test_what_comes_after_a_failure_is_left_out_and_the_rest_is_not(self):
        ended, said = run(Step("bad", bash("echo why; exit 3")), Step("next", "true", ("bad",)), Step("last", "true", ("next",)), Step("other", "true"))
        self.assertEqual({name: one.outcome for name, one in ended.items()},
                         {"bad": steps.FAILED, "next": steps.LEFT_OUT, "last": steps.LEFT_OUT, "other": steps.PASSED})
        self.assertIn("bad FAILED after 0 s; it last said:\nwhy\n", said)

    def test_a_program_that_is_not_there_is_told(self):
        ended, said = run(Step("none", "THIS=that make"))
        self.assertEqual(ended["none"].outcome, steps.FAILED)
        self.assertIn("THIS=that make: [Errno 2] No such file", said)

    def test_each_part_of_full_can_be_started(self):
        for part, (_, command, *_) in full.PARTS.items():
            self.assertEqual(steps.shlex.split(command)[0], "make", part)

    def test_the_first_that_may_begin_does(self):
        ended, _ = run(Step("one", "sleep 0.2"), Step("two", "true", ("one",)), Step("three", "sleep 0.2"), at_once=1)
        self.assertEqual(sorted(ended, key=lambda name: ended[name].begun), ["one", "two", "three"])

    def test_what_must_be_alone_is(self):
        bed, all_of_it = frozenset({"bed"}), frozenset({"bed", "rest"})
        ended, _ = run(Step("one", "sleep 0.4", alone=bed), Step("two", "sleep 0.1", alone=bed), Step("last", "true", alone=all_of_it),
                       Step("beside", "sleep 0.2", alone=frozenset({"rest"})))
        self.assertEqual(sorted(ended, key=lambda name: ended[name].begun), ["one", "beside", "two", "last"])
        self.assertGreater(ended["two"].begun, ended["one"].begun + 0.3)

    def test_one_that_hangs_is_ended_with_what_it_last_said(self):
        ended, said = run(Step("deaf", bash("trap '' TERM; echo waits for nothing; sleep 600"), minutes=0.02), Step("other", "true"))
        self.assertEqual((ended["deaf"].outcome, ended["other"].outcome), (steps.HUNG, steps.PASSED))
        self.assertLess(ended["deaf"].took, 20)
        self.assertIn("deaf HUNG after", said)
        self.assertIn("waits for nothing\n=== asked to end: it ran longer than 1 s\n", said)

    def test_one_that_hangs_may_put_away_what_it_set_up(self):
        ended, said = run(Step("tidy", bash("trap 'echo puts away' EXIT; sleep 600"), minutes=0.02))
        self.assertEqual(ended["tidy"].outcome, steps.HUNG)
        self.assertIn("puts away", said)
        self.assertNotIn("killed", said)

    def test_all_of_them_have_an_end(self):
        ended, _ = run(Step("long", "sleep 600"), Step("after", "true", ("long",)), minutes=0.02)
        self.assertEqual((ended["long"].outcome, ended["after"].outcome), (steps.HUNG, steps.LEFT_OUT))

    def test_what_is_left_running_is_killed_and_told(self):
        ended, said = run(Step("careless", bash("(setsid sleep 600 &); echo done")))
        self.assertEqual(ended["careless"].outcome, steps.PASSED)
        self.assertIn("done\n=== killed, for it was left running: sleep 600 \n", said)

    def test_processor_seconds_are_those_of_daemons_too(self):
        ended, said = run(Step("idle", "sleep 1"), Step("daemon", bash(f"(setsid {BUSY} &) ; {BUSY}; sleep 3")))
        self.assertLess(ended["idle"].processor, 0.5)
        self.assertTrue(2.5 < ended["daemon"].processor < 6, ended["daemon"])
        self.assertRegex(said, r"\n +\d+ +\d+ +[345]  passed    daemon\n")


if __name__ == "__main__":
    unittest.main(verbosity=2)
