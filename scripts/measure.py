#!/usr/bin/env python3
"""measure.py [REVISION ...]: counts what makes src easy or hard to read, of the working tree or of commits, side by side.

Prints tables in Markdown: lines by room, functions, names of types and functions, comments. Tests within a file (`#[cfg(test)] mod tests`) and
files that are all tests count apart. It reads text and no syntax tree, so it is right to within a percent; compare its numbers only with its own.
"""
import re
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from statistics import mean, median

ROOT = Path(__file__).resolve().parents[1]
# Names of types that each module may have once.
SHARED = {"Args", "Config", "Error", "Metrics", "Result"}
# Names of functions that say all in one word.
PLAIN = {"new", "fmt", "from", "default", "main", "drop", "next", "clone", "eq", "cmp", "hash", "deref", "into", "try_from", "source"}
# Participles, pronouns and question words, which do not say what a variable holds; as in tests/it/architecture/names.rs.
NO_NOUNS = set("""asked begun done due ended forgotten former found given gone heard held here kept known left made mine named noted ours owed own
    refused said seen shown standing taken theirs there told wanted what which who whom whose why written""".split())
LET = re.compile(r"\blet\s+(?:mut\s+)?([a-z_][a-z0-9_]*)\b(?!\s*\()")
PERSONS = re.compile(r"\b(nobody|somebody|anybody|whoever|whomever|everybody|everyone)\b", re.IGNORECASE)
TYPE = re.compile(r"^\s*(?:pub(?:\([^)]*\))?\s+)?(?:struct|enum|trait|union|type)\s+([A-Z]\w*)", re.MULTILINE)
FUNCTION = re.compile(r"^(\s*)(?:pub(?:\([^)]*\))?\s+)?(?:default\s+)?(?:const\s+)?(?:async\s+)?(?:unsafe\s+)?(?:extern\s+\"C\"\s+)?fn\s+(\w+)")
TESTS = re.compile(r"^#\[cfg\(test\)\]\nmod \w+ \{", re.MULTILINE)


def git(*words):
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True).stdout


def sources(revision):
    """Path and text of each file below src."""
    if revision is None:
        return {str(path.relative_to(ROOT)): path.read_text() for path in sorted((ROOT / "src").rglob("*.rs"))}
    paths = git("ls-tree", "-r", "--name-only", revision, "src").decode().split()
    return {path: git("show", f"{revision}:{path}").decode() for path in paths if path.endswith(".rs")}


def room(path):
    return path.split("/")[1].removesuffix(".rs")


def are_tests(path):
    return any(part in ("tests", "testing") for part in Path(path).with_suffix("").parts)


def words(name):
    """Of CamelCase or snake_case."""
    return [word for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", name) if word]


class Counts:
    """What was counted in a set of files."""

    def __init__(self, files):
        self.lines = defaultdict(Counter)
        self.types, self.functions, self.lengths, self.variables = [], [], [], []
        self.persons = self.comments = 0
        for path, text in files.items():
            self.file(path, text)

    def file(self, path, text):
        where = self.lines[room(path)]
        where["files"] += 1
        if are_tests(path):
            where["tests"] += text.count("\n")
            return
        found = TESTS.search(text)
        if found:
            where["tests"] += text[found.start():].count("\n")
            text = text[:found.start()]
        code = []
        for line in text.splitlines():
            bare = line.strip()
            sort = ("blank" if not bare else "doc" if bare.startswith(("///", "//!")) else "//" if bare.startswith("//") else "code")
            where[sort] += 1
            if sort == "code":
                code.append(line)
            if "//" in line:
                self.comments += sort in ("doc", "//")
                self.persons += bool(PERSONS.search(line.partition("//")[2]))
        self.types += [(room(path), name) for name in TYPE.findall("\n".join(code)) if len(name) > 1]
        self.variables += [name for line in code for name in LET.findall(line)]
        self.count_functions(code)

    def count_functions(self, code):
        """A function ends at the first line that closes at its own depth."""
        for at, line in enumerate(code):
            found = FUNCTION.match(line)
            if not found:
                continue
            self.functions.append(found[2])
            for end in range(at, len(code)):
                if code[end].rstrip().endswith(("}", "};")) and (end == at or code[end].startswith(found[1] + "}")):
                    self.lengths.append(end - at + 1)
                    break
                if code[end].rstrip().endswith(";") and end - at < 12 and "{" not in "".join(code[at:end + 1]):
                    break

    def rooms(self):
        return sorted(self.lines, key=lambda name: -self.lines[name]["code"])

    def figures(self):
        names = [(where, name) for where, name in self.types if name not in SHARED]
        by_room = defaultdict(Counter)
        for where, name in names:
            by_room[where][name] += 1
        again = {where: sorted(name for name, times in counted.items() if times > 1) for where, counted in by_room.items()}
        code = sum(counted["code"] for counted in self.lines.values())
        lengths = sorted(self.lengths)
        functions = [name for name in self.functions if name not in PLAIN]
        overall = Counter(name for _, name in names)

        def share(part, whole):
            return f"{100 * part / max(whole, 1):.1f} %"
        return {
            "lines of code": f"{code}",
            "functions": f"{len(lengths)}",
            "their lines: median, p99, most": f"{median(lengths):.0f}, {lengths[len(lengths) * 99 // 100]}, {lengths[-1]}",
            "types": f"{len(names)}",
            "of one word": share(sum(len(words(name)) == 1 for _, name in names), len(names)),
            "words in a type's name, mean": f"{mean(len(words(name)) for _, name in names):.2f}",
            "definitions that share their name": share(sum(times for times in overall.values() if times > 1), len(names)),
            "names that a room has twice or more": f"{sum(map(len, again.values()))}",
            "functions of a one-word name": share(sum(len(words(name)) == 1 for name in functions), len(functions)),
            "functions named by a participle or pronoun, in 1 000": f"{1000 * sum(name in NO_NOUNS for name in functions) / max(len(functions), 1):.0f}",
            "variables (`let`) of a one-word name": share(sum("_" not in name for name in self.variables), len(self.variables)),
            "variables named by a participle or pronoun, in 1 000": f"{1000 * sum(name in NO_NOUNS for name in self.variables) / max(len(self.variables), 1):.0f}",
            "`//` lines in 100 lines of code": f"{100 * sum(counted['//'] for counted in self.lines.values()) / code:.1f}",
            "comment lines": f"{self.comments}",
            "of these with nobody, somebody, anybody, whoever": f"{self.persons}",
        }


def table(head, rows):
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(map(str, row)) + " |")
    print()


def main():
    revisions = sys.argv[1:] or [None]
    seen = {revision or "working tree": Counts(sources(revision)) for revision in revisions}
    figures = {name: counted.figures() for name, counted in seen.items()}
    table(["", *seen], [[what, *(one[what] for one in figures.values())] for what in next(iter(figures.values()))])
    for name, counted in seen.items():
        sorts = ["files", "code", "doc", "//", "blank", "tests"]
        table([f"room, {name}", *sorts], [[where, *(counted.lines[where][sort] for sort in sorts)] for where in counted.rooms()])


if __name__ == "__main__":
    main()
