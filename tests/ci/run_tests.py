#!/usr/bin/env python3
"""run_tests.py: what scripts/run_tests.py promises of a test program: readable lines with seconds, a line of record for each test, the tests that were running
named, and nothing else changed. The program is a real one, which rustc makes of a few tests.
"""
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

RUNNER = Path(__file__).resolve().parents[2] / "scripts/run_tests.py"
TESTS = r"""
use std::{env, fs, process::Command, thread, time::Duration};
#[test] fn passes() { println!("words of a test that passes"); }
#[test] fn fails() { println!("words of a test that fails"); assert_eq!(1 + 1, 3, "sums"); }
#[test] #[ignore = "long"] fn ignored() { assert!(env::args().any(|word| word == "--ignored")); }
#[test] #[should_panic] fn survives() {}
#[test] fn speaks() { print!("x"); Command::new("sh").args(["-c", "printf 'a child'"]).status().unwrap(); }
#[test] fn sleeps() { fs::write(env::var("BEGUN").unwrap(), "").unwrap(); thread::sleep(Duration::from_secs(600)); }
#[test] fn aborts() { std::process::abort(); }
#[test] fn leaves() { Command::new("sleep").arg("600").spawn().unwrap(); }
"""


class RunTests(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.place = Path(tempfile.mkdtemp())
        cls.addClassCleanup(shutil.rmtree, cls.place)
        (cls.place / "tests.rs").write_text(TESTS)
        cls.program = cls.place / "it-0123456789abcdef"
        subprocess.run(["rustc", "--test", cls.place / "tests.rs", "-o", cls.program], check=True)

    def setUp(self):
        self.times = self.place / f"{self.id()}.tests"
        self.env = {**os.environ, "NAVIGATOR_TEST_TIMES": str(self.times), "RUST_BACKTRACE": "0", "BEGUN": str(self.place / self.id())}
        self.env.pop("RUSTC_BOOTSTRAP", None)

    def run_tests(self, *arguments, program=None):
        """Its exit code, what it said, and its record by test."""
        done = subprocess.run([RUNNER, program or self.program, *arguments], env=self.env, capture_output=True, text=True)
        return done.returncode, done.stdout, self.record()

    def record(self):
        lines = self.times.read_text().splitlines() if self.times.exists() else []
        return {entry["test"]: entry for entry in map(json.loads, lines)}

    def test_seconds_failures_and_the_closing_line_are_said(self):
        code, said, record = self.run_tests("passes", "fails", "ignored", "survives")
        self.assertEqual(code, 101)
        self.assertIn("\nrunning 4 tests\n", said)
        self.assertRegex(said, r"\ntest passes \.\.\. ok \(\d+\.\d{3} s\)\n")
        self.assertIn("\ntest ignored ... ignored, long\n", said)
        self.assertRegex(said, r"\ntest fails \.\.\. FAILED \(\d+\.\d{3} s\)\n---- fails stdout ----\nwords of a test that fails\n")
        self.assertIn("\ntest did not panic as expected at ", said)
        self.assertIn("\nfailures:\n    fails\n    survives\n", said)
        self.assertRegex(said, r"\ntest result: FAILED\. 1 passed; 2 failed; 1 ignored; 0 measured; 4 filtered out; finished in \d+\.\d\ds\n")
        self.assertNotIn("words of a test that passes", said)
        self.assertEqual({name: entry["outcome"] for name, entry in record.items()}, {"passes": "ok", "fails": "failed", "survives": "failed"})
        self.assertIn("left: 2", record["fails"]["output"])
        self.assertEqual((record["fails"]["command"], record["fails"]["program"]), ("cargo test --test it fails -- --exact", "it"))

    def test_it_passes_when_all_tests_do(self):
        code, said, _ = self.run_tests("passes")
        self.assertEqual(code, 0)
        self.assertIn("\ntest result: ok. 1 passed; 0 failed;", said)

    def test_unit_tests_are_those_of_the_library(self):
        program = self.place / "navigator_base-0123456789abcdef"
        program.hardlink_to(self.program)
        self.assertEqual(self.run_tests("ignored", "--ignored", program=program)[2]["ignored"]["command"],
                         "cargo test -p navigator-base --lib ignored -- --exact --ignored")

    def test_words_past_libtest_damage_nothing(self):
        for arguments in (("speaks",), ("speaks", "--nocapture")):
            code, said, record = self.run_tests(*arguments)
            self.assertEqual((code, record["speaks"]["outcome"]), (0, "ok"))
            self.assertIn("a child", said)
            self.assertIn("test result: ok. 1 passed;", said)
            self.assertNotIn('"type"', said)

    def test_who_is_asked_to_end_names_the_tests_that_were_running(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            begun = Path(self.env["BEGUN"])
            begun.unlink(missing_ok=True)
            self.times.unlink(missing_ok=True)
            runner = subprocess.Popen([RUNNER, self.program, "sleeps", "passes"], env=self.env, stdout=subprocess.PIPE, text=True)
            while not (begun.exists() and self.record().get("passes", {}).get("outcome") == "ok"):
                self.assertIsNone(runner.poll())
                time.sleep(0.02)
            runner.send_signal(number)
            said = runner.communicate()[0]
            self.assertEqual(runner.returncode, -number)
            self.assertRegex(said, rf"asked to end by {number.name}; these tests were running:\ntest sleeps \.\.\. running for \d+ s\n")
            self.assertEqual(self.record()["sleeps"]["outcome"], "running")
            self.assertEqual(self.record()["passes"]["outcome"], "ok")

    def test_a_program_that_dies_names_the_tests_that_were_running(self):
        code, said, record = self.run_tests("aborts")
        self.assertEqual(code, -signal.SIGABRT)
        self.assertIn("test aborts ... FAILED: the test program ended with SIGABRT while these tests ran: aborts\n", said)
        self.assertIn("test result: FAILED.", said)
        self.assertEqual(record["aborts"]["outcome"], "failed")

    def test_what_a_test_leaves_running_is_not_waited_for(self):
        done = subprocess.Popen([RUNNER, self.program, "leaves"], env=self.env, stdout=subprocess.DEVNULL, start_new_session=True)
        self.assertEqual(done.wait(timeout=300), 0)
        os.killpg(done.pid, signal.SIGKILL)

    def test_other_forms_of_output_are_libtests_own(self):
        code, said, record = self.run_tests("--list")
        self.assertEqual((code, record), (0, {}))
        self.assertIn("\npasses: test\n", said)
        self.assertIn("\nrunning 1 test\n.\n", self.run_tests("passes", "--quiet")[1])

    def script(self, name, text):
        path = self.place / name
        path.write_text("#!/bin/sh\n" + text)
        path.chmod(0o755)
        return path

    def test_programs_without_libtest_are_run_as_they_are(self):
        code, said, _ = self.run_tests("--full", "a b", program=self.script("databases-0123456789abcdef", 'echo "[$RUSTC_BOOTSTRAP]"; printf "<%s>" "$@"; exit 7\n'))
        self.assertEqual((code, said), (7, "[]\n<--full><a b>"))

    def test_a_libtest_without_json_is_run_as_it_is(self):
        program = self.script("it-1", '# Configure formatting of output\ncase "$*" in *json*) exit 101;; esac; echo "plain $*"\n')
        code, said, _ = self.run_tests("name", program=program)
        self.assertEqual((code, said), (0, "run_tests.py: this libtest gives no JSON, so the seconds of its tests are not known\nplain name\n"))

    def test_doctests_are_run_as_they_are(self):
        program = self.script("rust_out", '# Configure formatting of output\necho "plain $*"\n')
        self.assertEqual(self.run_tests(program=program)[1], "plain \n")


if __name__ == "__main__":
    unittest.main(verbosity=2)
