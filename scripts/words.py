#!/usr/bin/env python3
"""words.py [--write | --show N]: counts words that pages, comments and messages do not use (docs/words.md).

Fails if one is used more often than the page allows. --write lowers the numbers of the page to what is counted. --show N prints each place of line N of the list.
"""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/words.md"
LIST = re.compile(r"(?<=```words\n).*?(?=```)", re.DOTALL)
FENCE = re.compile(r"^[ ]*```.*?^[ ]*```", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"`[^`\n]*`|\]\([^)]*\)|\bhttps?://\S+|\b[\w.-]+/[\w./-]+")
TESTS = re.compile(r"^#\[cfg\(test\)\]\nmod \w+ \{", re.MULTILINE)
LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)


def pages():
    for path in sorted((ROOT / "docs").rglob("*.md")):
        if path != PAGE:
            yield path, CODE.sub(" ", FENCE.sub("", path.read_text()))


def is_test(path):
    return any(part in ("tests", "testing") for part in path.with_suffix("").parts)


def comments_and_messages():
    for path in sorted((ROOT / "src").rglob("*.rs")):
        if is_test(path.relative_to(ROOT)):
            continue
        text = path.read_text()
        tests = TESTS.search(text)
        text = text[:tests.start()] if tests else text
        comment = "\n".join(re.sub(r"^\s*//[/!]?", "", line) for line in text.splitlines() if line.strip().startswith("//"))
        code = "\n".join(line for line in text.splitlines() if not line.strip().startswith("//"))
        literals = (re.sub(r"\\\n\s*", "", one[1]) for one in LITERAL.finditer(code))
        yield path, CODE.sub(" ", comment), "\n".join(literals)


def main():
    page = PAGE.read_text()
    rows = [row.split(" :: ") for row in LIST.search(page)[0].splitlines() if row]
    texts = ([], [], [])
    for path, text in pages():
        texts[0].append((path, text))
    for path, comment, literals in comments_and_messages():
        texts[1].append((path, comment))
        texts[2].append((path, literals))
    if sys.argv[1:2] == ["--show"]:
        pattern = re.compile(rows[int(sys.argv[2]) - 1][0])
        for kind, files in zip(("page", "comment", "message"), texts, strict=True):
            for path, text in files:
                for hit in pattern.finditer(text):
                    around = " ".join(text[max(0, hit.start() - 60):hit.end() + 60].split())
                    print(f"{kind} {path.relative_to(ROOT)}: {around}")
        return
    total, risen, lines = [0, 0, 0], [], []
    for pattern, instead, allowed in rows:
        found = [sum(1 for _, text in files for _ in re.finditer(pattern, text)) for files in texts]
        limits = [int(number) for number in allowed.split()]
        total = [one + other for one, other in zip(total, found, strict=True)]
        risen += [f"{kind}s: {count} times, {limit} are allowed: {pattern} (write: {instead})"
                  for kind, count, limit in zip(("page", "comment", "message"), found, limits, strict=True) if count > limit]
        lines.append(" :: ".join((pattern, instead, " ".join(map(str, found)))))
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(LIST.sub(lambda _: "\n".join(lines) + "\n", page))
    print("words that are not used: {} in pages, {} in comments, {} in messages".format(*total))
    if risen and sys.argv[1:] != ["--write"]:
        sys.exit("\n".join(risen) + "\nscripts/words.py --show N prints each place of line N of the list in docs/words.md")


if __name__ == "__main__":
    main()
