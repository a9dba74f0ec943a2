#!/usr/bin/env python3
"""advisories.py: a crate with a known fault is refused, by the version that Cargo.lock has; the list says its date, and is renewed from a
repository."""
import subprocess
import sys
import tempfile
import tomllib
import unittest
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import advisories  # noqa: E402

SOURCE = advisories.SOURCE
LIST = ("# Known advisories.\n# Date: 2026-08-21\n"
        "RUSTSEC-2024-0003\th2\tvulnerability\t^0.3.24 || >= 0.4.2\n"
        "RUSTSEC-2024-0099\tidle\tunmaintained\t\n")
TODAY = date(2026, 8, 31)


def lock(*crates, source=SOURCE):
    return {"package": [{"name": name, "version": version, "source": source} for name, version in crates]}


def advisory(**more):
    """An advisory as it lies in the database."""
    text = "".join(f"{key} = {value}\n" for key, value in more.items() if "." not in key)
    affected = "".join(f"[affected]\n{key.split('.')[1]} = {value}\n" for key, value in more.items() if "." in key)
    return f"""```toml
[advisory]
id = "RUSTSEC-2026-0001"
package = "h2"
{text}
{affected}
[versions]
patched = [">= 0.4.2",  "^ 0.3.24"]
unaffected = ["< 0.2,  >= 0.1"]
```

# A title
"""


class Ranges(unittest.TestCase):
    def test_which_versions_a_range_holds(self):
        for reach, inside, outside in (
            (">= 1.2.3", "1.2.3 1.2.10 2.0.0 1.3.0-rc.1 1.2.3+b", "1.2.2 1.2.3-rc.1 0.9.9"),
            (">=1.2", "1.2.0 1.10.0", "1.1.99 1.2.0-rc.1"),
            (">= 1.0.0-alpha.2", "1.0.0-alpha.2 1.0.0-alpha.10 1.0.0-beta 1.0.0-rc.1 1.0.0", "1.0.0-alpha.1 1.0.0-alpha 0.9.0"),
            ("> 1.2.3", "1.2.4 1.2.4-rc.1", "1.2.3 1.2.3-rc.1"),
            ("> 1.2", "1.3.0", "1.2.0 1.2.9 1.1.0"),
            ("> 1", "2.0.0", "1.9.9"),
            ("< 1.2.3", "1.2.2 0.1.0 1.2.2-rc.1", "1.2.3 1.2.3-rc.1 1.3.0"),
            ("< 1.2", "1.1.9", "1.2.0"),
            ("< 1.2.3-beta", "1.2.3-alpha 1.2.2", "1.2.3-beta 1.2.3"),
            ("<= 1.2.3", "1.2.3 1.2.2", "1.2.4 1.2.4-rc.1"),
            ("<= 1.2.3-rc.1", "1.2.3-rc.1 1.2.2", "1.2.3-rc.1.1 1.2.3-rc.2 1.2.3"),
            ("<= 1.2", "1.2.9", "1.3.0"),
            ("=1.2.3", "1.2.3", "1.2.2 1.2.4 1.2.3-rc.1"),
            ("= 1.2", "1.2.0 1.2.9", "1.1.9 1.3.0"),
            ("^1.2.3", "1.2.3 1.99.0", "1.2.2 2.0.0 2.0.0-rc.1"),
            ("^ 0.3.24", "0.3.24 0.3.99", "0.3.23 0.4.0 0.4.0-rc.1 1.0.0"),
            ("^0.0.3", "0.0.3", "0.0.2 0.0.4"),
            ("^0.0", "0.0.0 0.0.9", "0.1.0"),
            ("^0", "0.0.1 0.9.0", "1.0.0"),
            ("^1", "1.0.0 1.9.0", "0.9.0 2.0.0"),
            ("0.13.10", "0.13.10 0.13.11", "0.13.9 0.14.0"),
            ("~1.2.3", "1.2.3 1.2.9", "1.2.2 1.3.0"),
            ("~1", "1.0.0 1.9.0", "2.0.0"),
            (">= 0.4.2, < 0.5.0", "0.4.2 0.4.9", "0.4.1 0.5.0 0.5.0-rc.1"),
            ("< 0.10.0, >= 0.9.18", "0.9.18", "0.9.17 0.10.0"),
        ):
            for version in inside.split():
                self.assertTrue(advisories.holds(reach, version), f"{version} is in {reach}")
            for version in outside.split():
                self.assertFalse(advisories.holds(reach, version), f"{version} is not in {reach}")

    def test_what_is_no_range_is_no_answer(self):
        for reach in ("", "1.x", "*", ">= 1.2.3.4", "=> 1", ">= 1, "):
            with self.assertRaises(ValueError, msg=reach):
                advisories.holds(reach, "1.0.0")


class Check(unittest.TestCase):
    def check(self, crates, rules=None):
        return advisories.check(LIST, crates, rules or {}, TODAY)

    def test_a_version_with_a_known_fault_is_refused(self):
        for version in ("0.3.23", "0.4.1", "0.2.0"):
            _, refused = self.check(lock(("h2", version), ("serde", "1.0.0")))
            self.assertEqual(len(refused), 1, version)
            self.assertIn(f"h2 {version}: RUSTSEC-2024-0003", refused[0])
        for version in ("0.3.24", "0.4.2", "1.0.0"):
            self.assertEqual(self.check(lock(("h2", version)))[1], [], version)

    def test_each_version_of_a_crate_is_looked_at(self):
        _, refused = self.check(lock(("h2", "0.4.2"), ("h2", "0.3.1")))
        self.assertEqual([line.split(":")[0] for line in refused], ["h2 0.3.1"])

    def test_the_date_is_said(self):
        said, _ = self.check(lock(("h2", "0.4.2")))
        self.assertIn("of 2026-08-21, 10 days old", said[-1])

    def test_what_is_not_maintained_is_said_and_refuses_nothing(self):
        said, refused = self.check(lock(("idle", "1.0.0")))
        self.assertEqual(refused, [])
        self.assertIn("RUSTSEC-2024-0099", said[0])

    def test_what_deny_toml_ignores_is_said_and_refuses_nothing(self):
        for entry in ("RUSTSEC-2024-0003", {"id": "RUSTSEC-2024-0003", "reason": "r"}):
            said, refused = self.check(lock(("h2", "0.4.1")), {"advisories": {"ignore": [entry]}})
            self.assertEqual(refused, [])
            self.assertIn("RUSTSEC-2024-0003", said[0])

    def test_crates_of_ours_are_not_those_of_the_list(self):
        self.assertEqual(self.check(lock(("h2", "0.4.1"), source=None))[1], [])

    def test_a_list_without_a_date_or_with_broken_lines_is_no_list(self):
        for text in (LIST.replace("# Date", "# When"), LIST + "RUSTSEC-1\th2\n", LIST.replace(">= 0.4.2", "0.4.*")):
            with self.assertRaises(ValueError, msg=text):
                advisories.check(text, lock(("h2", "0.4.1")), {}, TODAY)

    def test_the_list_of_the_tree_refuses_an_older_crate_of_the_tree(self):
        text = advisories.LIST.read_text()
        crates = tomllib.loads((ROOT / "Cargo.lock").read_text())
        [h2] = [package for package in crates["package"] if package["name"] == "h2"]
        h2["version"] = "0.4.1"
        _, refused = advisories.check(text, crates, {}, TODAY)
        self.assertTrue(any("RUSTSEC-2024-0003" in line for line in refused), refused)


class Renewal(unittest.TestCase):
    def test_a_line_has_what_the_check_goes_by(self):
        line = advisories.line_of(advisory(date='"2026-01-01"'))
        self.assertEqual(line, "RUSTSEC-2026-0001\th2\tvulnerability\t>= 0.4.2 || ^ 0.3.24 || < 0.2, >= 0.1")
        self.assertIn("\tunsound\t", advisories.line_of(advisory(informational='"unsound"')))

    def test_what_was_withdrawn_or_concerns_other_systems_is_left_out(self):
        self.assertIsNone(advisories.line_of(advisory(withdrawn='"2026-01-02"')))
        self.assertIsNone(advisories.line_of(advisory(**{"affected.os": '["windows"]'})))
        self.assertIsNotNone(advisories.line_of(advisory(**{"affected.os": '["windows", "linux"]'})))
        self.assertIsNone(advisories.line_of(advisory(**{"affected.arch": '["x86"]'})))

    def test_a_repository_gives_a_list_with_the_date_of_its_commit(self):
        with tempfile.TemporaryDirectory() as place:
            def git(*arguments):
                subprocess.run(["git", "-C", place, "-c", "user.name=a", "-c", "user.email=a@example.org", *arguments], check=True, capture_output=True)

            (Path(place) / "crates/h2").mkdir(parents=True)
            (Path(place) / "crates/h2/RUSTSEC-2026-0001.md").write_text(advisory())
            (Path(place) / "README.md").write_text("none")
            git("init", "--quiet")
            git("add", ".")
            git("commit", "--quiet", "--message", "one", "--date", "2026-08-20T12:00:00Z")
            when, known = advisories.advisories(advisories.written(place))
            self.assertEqual(when, date.fromisoformat(subprocess.check_output(["git", "-C", place, "log", "-1", "--format=%cs"], text=True).strip()))
            self.assertEqual(known, [("RUSTSEC-2026-0001", "h2", "vulnerability", [">= 0.4.2", "^ 0.3.24", "< 0.2, >= 0.1"])])
            git("rm", "--quiet", "-r", "crates")
            git("commit", "--quiet", "--message", "none")
            with self.assertRaises(ValueError):
                advisories.written(place)


if __name__ == "__main__":
    unittest.main()
