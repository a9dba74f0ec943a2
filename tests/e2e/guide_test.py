"""What guide.py takes for an answer, and what it refuses: run by `make docs`."""
import contextlib
import tempfile
import unittest
from pathlib import Path

import guide

TABLE = "NAME    READY   AGE\nsmall   True    2m36s\n"


@contextlib.contextmanager
def page(text, instead=()):
    """A page of this text, and a guide to it."""
    with tempfile.NamedTemporaryFile("w", suffix=".md") as file:
        file.write(text)
        file.flush()
        yield guide.Guide(Path(file.name), say=lambda _: None, instead=instead)


class Answers(unittest.TestCase):
    def test_a_table_is_the_same_whatever_its_age_and_its_spaces(self):
        self.assertIsNone(guide.differs(["NAME  READY  AGE", "small  True  65s"], TABLE))

    def test_another_word_another_order_a_line_too_few_and_one_too_many_are_found(self):
        self.assertEqual(guide.differs(["NAME READY AGE", "small False 65s"], TABLE), "small False 65s")
        self.assertEqual(guide.differs(["small True 65s", "NAME READY AGE"], TABLE), "small True 65s")
        self.assertIn("small True AGE", guide.differs(["NAME READY AGE"], TABLE))
        self.assertEqual(guide.differs(["NAME READY AGE", "small True 1s", "other"], TABLE), "other")

    def test_an_ellipsis_stands_for_text_and_for_lines(self):
        self.assertIsNone(guide.differs(["…", "small … 1s"], TABLE))
        self.assertIsNone(guide.differs(["NAME READY AGE", "…"], TABLE))
        self.assertEqual(guide.differs(["…", "large … 1s"], TABLE), "large … 1s")

    def test_what_is_not_shown_is_not_compared(self):
        self.assertIsNone(guide.differs([], TABLE))


class Pages(unittest.TestCase):
    def test_commands_run_in_order_and_what_fails_is_named(self):
        with page("# A\n```console\n$ echo one\none\n$ echo two\nthree\n```\n") as reader:
            with self.assertRaisesRegex(guide.Wrong, r":2, after 0 s: the page shows:\nthree\n"):
                reader.run("A")

    def test_a_script_ends_at_its_first_error(self):
        with page("```sh\nfalse | cat\ntrue\n```\n") as reader:
            with self.assertRaisesRegex(guide.Wrong, "exit 1"):
                reader.run()

    def test_an_exit_code_and_what_is_said_then_are_expected(self):
        with page("<!-- ends with 3 -->\n```console\n$ echo no >&2; exit 3\nno\n```\n") as reader:
            reader.run()
            reader.ended()

    def test_a_block_is_repeated_within_its_time(self):
        with tempfile.TemporaryDirectory() as folder:
            with page(f"<!-- within 30s -->\n```sh\n[ -e {folder}/seen ] || {{ touch {folder}/seen; false; }}\n```\n") as reader:
                reader.run()

    def test_a_section_that_nobody_ran_is_missed(self):
        with page("# A\n```sh\ntrue\n```\n# B\n## C\n```sh\ntrue\n```\n```text\nfalse\n```\n") as reader:
            reader.run("A")
            with self.assertRaisesRegex(guide.Wrong, ":7$"):
                reader.ended()
            reader.run("B")
            reader.ended()
            with self.assertRaises(guide.Wrong):
                reader.run("A")

    def test_a_comment_that_does_nothing_is_refused(self):
        for text in ("<!-- within a while -->\n", "<!-- within 5m -->\n```yaml\na: b\n```\n", "<!-- within 5m -->\nwords\n"):
            with self.subTest(text), self.assertRaises(guide.Wrong):
                with page(text + "```sh\ntrue\n```\n"):
                    pass

    def test_more_lines_of_one_command_are_one_command(self):
        with page("```console\n$ cat <<END\n> words\n> END\nwords\n```\n") as reader:
            reader.run()

    def test_another_command_is_typed_in_the_place_of_one_that_the_page_must_show(self):
        text = "```console\n$ false\nyes\n```\n"
        with page(text, [("false", "echo yes")]) as one:
            one.run()
            one.ended()
        with page(text.replace("false", "echo yes"), [("false", "echo yes")]) as one, self.assertRaisesRegex(guide.Wrong, "does not show: false"):
            one.run()
            one.ended()


if __name__ == "__main__":
    unittest.main()
