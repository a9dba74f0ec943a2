#!/usr/bin/env python3
"""A page of docs/ as its reader follows it: runs the commands of its blocks as typed, and compares what it shows.

A block ```sh is run as one script, a block ```console line by line: `$ ` begins a command (`> ` goes on with it), the lines below are
what it shows. Shown lines must come in their order; `…` stands for any text, alone on a line for any lines, and times, addresses and
identities may be others. A comment before the block says more:

    <!-- within 5m -->            repeat it until it ends well and shows this, at most so long
    <!-- ends with 3 -->          the exit code that is expected
    <!-- not run: REASON -->      nobody but a person can do this; `--check` lists these

`guide.py PAGE ...` runs whole pages with the kubectl of the environment, `guide.py --check PAGE ...` only reads them. `--instead SHOWN=TYPED` types
another command in the place of one that the pages must show.
"""
import os
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
UNITS = {"s": 1, "m": 60}
COMMENT = re.compile(r"<!-- (?:within (?P<within>\d+[sm])|ends with (?P<code>\d+)|not run: (?P<not_run>.+?)) -->")
# What differs from run to run, in the order in which it is looked for.
VARIES = [(re.compile(pattern), word) for pattern, word in (
    (r"\b\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME"),
    (r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "UID"),
    (r"\b\d{1,3}(?:\.\d{1,3}){3}\b", "ADDRESS"),
    (r"(?<![\w.-])(?:\d+[dhms])+(?![\w.-])", "AGE"),
    (r"\b\d+(?:\.\d+)? ?[KMG]i?B\b", "SIZE"),
    (r"\s+", " "),
)]


class Wrong(Exception):
    """A page that is not as it says, or cannot be read."""


class Block:
    """Commands below one fence, with what the comment before it says."""

    def __init__(self, page, line, heading, language, note):
        self.page, self.line, self.heading, self.language = page, line, heading, language
        self.within = int(note["within"][:-1]) * UNITS[note["within"][-1]] if note.get("within") else 0
        self.code = int(note.get("code") or 0)
        self.not_run = note.get("not_run")
        self.lines = []

    def __str__(self):
        return f"{self.page}:{self.line}"

    def commands(self):
        """Pairs of a command and the lines that the page shows of its answer."""
        if self.language == "sh":
            return [("\n".join(self.lines), [])]
        pairs = []
        for line in self.lines:
            if line.startswith("$ "):
                pairs.append((line[2:], []))
            elif not pairs:
                raise Wrong(f"{self}: shows an answer before a command: {line}")
            elif line.startswith("> ") and not pairs[-1][1]:
                pairs[-1] = (f"{pairs[-1][0]}\n{line[2:]}", [])
            else:
                pairs[-1][1].append(line)
        return pairs


def blocks(page):
    """Of a page's text: its blocks, each with the headings that it stands under."""
    found, headings, note, open_ = [], [], {}, None
    for number, line in enumerate((ROOT / page).read_text(encoding="utf-8").splitlines(), 1):
        text = line.strip()
        if open_ is not None:
            if text.startswith("```"):
                open_ = None
            elif isinstance(open_, Block):
                open_.lines.append(line[indent:] if not line[:indent].strip() else line)
        elif text.startswith("```"):
            indent, language, open_ = len(line) - len(line.lstrip()), text[3:], text
            if language in ("sh", "console"):
                open_ = Block(page, number, tuple(title for _, title in headings), language, note)
                found.append(open_)
            elif note:
                raise Wrong(f"{page}:{number}: a comment for a block that is not run anyway")
            note = {}
        elif heading := re.match(r"(#+) (.+)", line):
            headings = [(level, title) for level, title in headings if level < len(heading[1])] + [(len(heading[1]), heading[2])]
        elif text.startswith("<!--"):
            comments = list(COMMENT.finditer(text))
            if COMMENT.sub("", text).strip():
                raise Wrong(f"{page}:{number}: a comment that nobody understands: {text}")
            note = {key: value for comment in comments for key, value in comment.groupdict().items() if value}
        elif text and note:
            raise Wrong(f"{page}:{number}: a comment without a block below it")
    return found


def plain(line):
    for pattern, word in VARIES:
        line = pattern.sub(word, line)
    return line.strip()


def differs(shown, said):
    """The first shown line that is not said where it should be, or None."""
    rest, anywhere = [plain(line) for line in said.splitlines() if line.strip()], False
    for line in shown:
        if line.strip() in ("…", ""):
            anywhere = anywhere or line.strip() == "…"
            continue
        wanted = re.compile(".*".join(re.escape(part.strip()) for part in plain(line).split("…")).replace(".*", r"\s?.*"))
        at = next((at for at, one in enumerate(rest) if wanted.fullmatch(one)), None)
        if at is None or (at > 0 and not anywhere):
            return line
        rest, anywhere = rest[at + 1:], False
    return None if anywhere or not rest or not shown else f"(nothing after this, but there is {rest[0]!r})"


class Guide:
    """Runs a page, whole or heading by heading; `ended` claims that nothing was left out."""

    def __init__(self, page, environment=None, say=print, instead=()):
        self.left, self.environment, self.say = blocks(page), {**os.environ, **(environment or {})}, say
        self.page, self.instead = page, dict(instead)

    def run(self, heading=None):
        """The blocks under one heading, and under those below it; all of them when none is named."""
        mine = [block for block in self.left if heading is None or heading in block.heading]
        if not mine:
            raise Wrong(f"{self.page} has no commands, or none that were not run yet, under {heading!r}")
        for block in mine:
            self.left.remove(block)
            if block.not_run:
                self.say(f"    {block}: not run: {block.not_run}")
                continue
            for command, shown in block.commands():
                self.typed(block, self.instead.pop(command.strip(), command), shown)

    def typed(self, block, command, shown):
        """One command, again and again where the page says how long that may take."""
        begun = time.monotonic()
        while True:
            wrong = self.once(block, command, shown)
            took = time.monotonic() - begun
            if wrong is None:
                self.say(f"    {block}: {' '.join(command.split())[:100]} ({took:.1f} s)")
                return
            if took >= block.within:
                raise Wrong(f"{block}, after {took:.0f} s: {wrong}")
            time.sleep(2)

    def once(self, block, command, shown):
        """What is wrong with its answer, or None."""
        try:
            done = subprocess.run(["bash", "-eo", "pipefail", "-c", command], cwd=ROOT, env=self.environment, stdin=subprocess.DEVNULL,
                                  capture_output=True, text=True, errors="replace", timeout=1800)
        except subprocess.TimeoutExpired as error:
            raise Wrong(f"{block}: did not end within {error.timeout:.0f} s: {command}") from error
        told = f"\n$ {command}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
        if done.returncode != block.code:
            return f"exit {done.returncode}{told}"
        # Warnings are not compared; what a command says when it fails is.
        wrong = differs(shown, done.stdout + (done.stderr if block.code else ""))
        return wrong and f"the page shows:\n{wrong}\nand it says:{told}"

    def ended(self):
        if self.left:
            raise Wrong(f"commands that nobody ran: {', '.join(map(str, self.left))}")
        if self.instead:
            raise Wrong(f"{self.page} does not show: {', '.join(self.instead)}")


def check(page):
    """What can be told without running anything: every block is a script, and what it names below deploy/ exists."""
    for block in blocks(page):
        for command, shown in block.commands():
            done = subprocess.run(["bash", "-n", "-c", command], capture_output=True, text=True)
            if done.returncode:
                raise Wrong(f"{block}: {done.stderr.strip()}")
            for file in re.findall(r"(?<![\w/.])deploy/[\w./-]+", command):
                if not (ROOT / file).exists():
                    raise Wrong(f"{block}: there is no {file}")
            differs(shown, "")
        if block.not_run:
            print(f"{block}: not run: {block.not_run}")


def main(arguments):
    pages, instead = [argument for argument in arguments if argument != "--check"], []
    while "--instead" in pages[:-1]:
        at = pages.index("--instead")
        instead.append(pages[at + 1].split("=", 1))
        del pages[at:at + 2]
    if not pages or any(len(pair) != 2 for pair in instead) or "--instead" in pages:
        print("usage: guide.py [--check] [--instead SHOWN=TYPED] PAGE ...", file=sys.stderr)
        return 64
    try:
        for page in pages:
            if "--check" in arguments:
                check(page)
                continue
            print(page)
            guide = Guide(page, say=lambda text: print(text, flush=True), instead=instead)
            guide.run()
            guide.ended()
    except Wrong as error:
        print(f"guide.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
