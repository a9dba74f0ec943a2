#!/usr/bin/env python3
"""full.py: what scripts/full.py promises of its parts: each can be started, no scenario is missing, a run goes on where it was interrupted, and the table on
the page is written by the script alone.
"""
import re
import shlex
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import full  # noqa: E402
from steps import Ended  # noqa: E402
from supervisor import CUT, FAILED, LEFT_OUT, LEFT_RUNNING, PASSED, STOPPED  # noqa: E402

PAGE = f"# Title\n\n{full.HEAD}| `gone` | was | 1 | d | 2 | passed |\n\nWritten by hand.\n\n| a | table |\n"


class Full(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.page, state = Path(folder.name) / "tested.md", Path(folder.name) / "passed.json"
        self.page.write_text(PAGE)
        for name, value in (("PAGE", self.page), ("STATE", state)):
            patch = mock.patch.object(full, name, value)
            patch.start()
            self.addCleanup(patch.stop)

    def end(self, part, outcome, of="abc"):
        full.keep(Ended(part, 0, 600, 0, outcome), of)

    def parts(self):
        return list(full.rows(self.page.read_text()))

    def test_each_part_is_a_target_of_make(self):
        targets = set(re.findall(r"^([a-z0-9 -]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
        targets = {name for names in targets for name in names.split()}
        for name, part in full.PARTS.items():
            make, target, *_ = shlex.split(part.command)
            self.assertEqual((make, target in targets), ("make", True), name)

    def test_each_scenario_is_in_one_part(self):
        scenarios = re.findall(r'^    \("([\w.-]+)", Set::', (ROOT / "tests/databases/main.rs").read_text(), re.MULTILINE)
        shown = [name for part in full.PARTS.values() for name in "".join(re.findall('SCENARIOS="(.*)"', part.command)).split()]
        self.assertGreater(len(scenarios), 20)
        self.assertEqual(sorted(shown), sorted(scenarios))

    def test_what_failed_stands_first_then_what_did_not_run(self):
        for part, outcome in (("shipped", PASSED), ("fuzz", FAILED), ("load", LEFT_RUNNING), ("model", CUT)):
            self.end(part, outcome)
        parts = self.parts()
        self.assertEqual(parts[:3] + parts[-1:], ["load", "model", "fuzz", "shipped"])
        self.assertEqual(set(parts), set(full.PARTS))
        today = full.datetime.now(full.timezone.utc).strftime("%Y-%m-%d")
        self.assertIn(f"| `model` | {full.PARTS['model'].shows} | abc | {today} | 10 | CUT |\n", self.page.read_text())
        self.assertIn(f"| `lost` | {full.PARTS['lost'].shows} | | | | not run yet |\n", self.page.read_text())

    def test_nothing_but_the_table_changes(self):
        self.end("fuzz", PASSED)
        text = self.page.read_text()
        self.assertTrue(text.startswith("# Title\n\n" + full.HEAD) and text.endswith("passed |\n\nWritten by hand.\n\n| a | table |\n"), text)
        full.write({})
        self.assertEqual(self.page.read_text(), text)

    def test_a_row_says_what_was_shown_when_it_ran(self):
        self.page.write_text(PAGE.replace("`gone` | was", "`fuzz` | less than today"))
        full.write({})
        self.assertIn("| `fuzz` | less than today | 1 | d | 2 | passed |\n", self.page.read_text())

    def test_a_part_that_was_stopped_or_left_out_shows_nothing(self):
        self.end("fuzz", PASSED)
        text = self.page.read_text()
        self.end("fuzz", STOPPED)
        self.end("fuzz", LEFT_OUT)
        self.assertEqual(self.page.read_text(), text)

    def test_a_run_goes_on_where_it_was_interrupted(self):
        self.end("shipped", PASSED)
        self.end("fuzz", FAILED)
        self.end("load", PASSED)
        rest = full.chosen([], "abc")
        self.assertEqual(set(full.PARTS) - set(rest), {"shipped", "load"})
        # Another commit begins anew; one that has failed since, or that somebody names, runs again.
        self.assertEqual(full.chosen([], "abd"), list(full.PARTS))
        self.assertEqual(full.chosen(["load", "shipped"], "abc"), ["shipped", "load"])
        self.end("load", FAILED)
        self.assertIn("load", full.chosen([], "abc"))

    def test_what_is_not_committed_passes_for_no_commit(self):
        self.end("shipped", PASSED, of="abc+")
        self.assertEqual(full.chosen([], "abc+"), list(full.PARTS))
        self.assertEqual(full.chosen([], "abc"), list(full.PARTS))


if __name__ == "__main__":
    unittest.main(verbosity=2)
