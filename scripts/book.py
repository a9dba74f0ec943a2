#!/usr/bin/env python3
"""book.py OUT [MDBOOK]: checks the links of the project's pages, and makes the book of them at OUT/html.

Without MDBOOK it only checks: each page of docs/ stands in docs/SUMMARY.md, each relative link leads to a file of the repository and
each anchor to a heading. The book is laid out as the repository is, with all files that pages link to, so that a link leads to the same
place in both; afterwards each link of the book is followed as well. Nothing is fetched.
"""
import html
import html.parser
import os
import re
import shutil
import subprocess
import sys
import urllib.parse
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SUMMARY = Path("docs/SUMMARY.md")
# Pages of the repository that are no pages of the book, and whose links are checked all the same.
BESIDE = [Path("README.md"), SUMMARY]
FIRST = '<!doctype html><title>Navigator</title><meta http-equiv="refresh" content="0; url={0}"><a href="{0}">Navigator</a>\n'
LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+)\)")
TAG = re.compile(r'<\w[^>]*?\b(?:src|srcset|href)="([^"]+)"')
FENCE = re.compile(r"^\s*```.*?^\s*```", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)


def prose(page):
    """A page without its blocks of code, inline code blanked."""
    return FENCE.sub("", (ROOT / page).read_text(encoding="utf-8"))


def links(page):
    """Relative links of a page: as written, the file, the anchor."""
    text = CODE.sub("", prose(page))
    for link in LINK.findall(text) + TAG.findall(text):
        parts = urllib.parse.urlsplit(link)
        if parts.scheme or parts.netloc:
            continue
        path = Path(os.path.normpath(page.parent / urllib.parse.unquote(parts.path))) if parts.path else page
        yield link, path, parts.fragment


def anchors(page):
    """What headings of a page are called in links."""
    seen, found = {}, set()
    for heading in re.findall(r"^#+ (.+?)\s*#*$", prose(page), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        name = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        count = seen[name] = seen.get(name, -1) + 1
        found.add(f"{name}-{count}" if count else name)
    return found


def chapters():
    return [path for _, path, _ in links(SUMMARY)]


def check():
    """What is wrong in the pages, and the files beside pages that they link to."""
    pages, wrong, files = chapters(), [], set()
    for page in sorted(Path(path).relative_to(ROOT) for path in (ROOT / "docs").rglob("*.md")):
        if page not in pages and page != SUMMARY:
            wrong.append(f"{page} is not in {SUMMARY}")
    for page in sorted(set(pages)):
        if pages.count(page) > 1:
            wrong.append(f"{page} is {pages.count(page)} times in {SUMMARY}")
    for page in [*pages, *BESIDE]:
        if not (ROOT / page).is_file():
            wrong.append(f"{SUMMARY}: there is no {page}")
            continue
        for link, path, anchor in links(page):
            if not (ROOT / path).exists() or ".." in path.parts:
                wrong.append(f"{page}: {link}: there is no {path}")
            elif (ROOT / path).is_dir():
                # Links of the book's pages only: README.md and its like are read in the repository, where the folder is.
                if page in pages:
                    files.update(file.relative_to(ROOT) for file in (ROOT / path).rglob("*") if file.is_file() and file.suffix != ".md")
            elif path.suffix == ".md":
                if path not in pages and page in pages and path not in BESIDE:
                    wrong.append(f"{page}: {link}: {path} is not in {SUMMARY}")
                if anchor and anchor not in anchors(path):
                    wrong.append(f"{page}: {link}: {path} has no heading for it")
            else:
                files.add(path)
    return wrong, files


def lay_out(folder, files):
    """The book's sources: pages and what they link to, in the places that they have in the repository."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "src").mkdir(parents=True)
    shutil.copy(ROOT / "docs/book.toml", folder)
    for path in {*chapters(), *files, Path("README.md")}:
        (folder / "src" / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, folder / "src" / path)
    summary = (ROOT / SUMMARY).read_text(encoding="utf-8")
    placed = LINK.sub(lambda found: found[0].replace(f"({found[1]})", f"({os.path.normpath(SUMMARY.parent / found[1])})"), summary)
    (folder / "src/SUMMARY.md").write_text(placed, encoding="utf-8")


class Page(html.parser.HTMLParser):
    """The links and the identities of a page of the book."""

    def __init__(self, text):
        super().__init__()
        self.links, self.ids = [], set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name in ("href", "src", "srcset") and value is not None:
                self.links.append(value)
            elif name == "id":
                self.ids.add(value)


def list_folders(folder, files):
    """A list of its files for each folder that has no page of the book, so that it can be linked to."""
    for place in sorted({folder / path.parent for path in files}):
        if place.is_dir() and not (place / "index.html").exists():
            names = sorted(path.name for path in place.iterdir())
            rows = "".join(f'<li><a href="{name}">{name}</a>' for name in map(html.escape, names) if (place / name).is_file())
            (place / "index.html").write_text(f"<!doctype html><title>{place.name}</title><ul>{rows}</ul>\n", encoding="utf-8")


def follow(folder):
    """What links of the finished book lead nowhere."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.html"))}
    wrong = []
    for path, page in pages.items():
        # A web server shows this page at any address, so its links begin at the root of the site.
        if path.name == "404.html":
            continue
        for link in page.links:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or parts.netloc:
                if parts.scheme not in ("http", "https", "mailto"):
                    wrong.append(f"{path.relative_to(folder)}: {link}")
                continue
            target = Path(os.path.normpath(path.parent / urllib.parse.unquote(parts.path))) if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            anchor = urllib.parse.unquote(parts.fragment)
            if not target.is_file() or (anchor and target in pages and anchor not in pages[target].ids):
                wrong.append(f"{path.relative_to(folder)}: {link} leads nowhere")
    return wrong, len(pages), sum(len(page.links) for page in pages.values())


def report(wrong):
    if wrong:
        print(*wrong, f"book.py: {len(wrong)} problems", sep="\n", file=sys.stderr)
        sys.exit(1)


def main(arguments):
    if len(arguments) not in (1, 2):
        print("usage: book.py OUT [MDBOOK]", file=sys.stderr)
        sys.exit(64)
    wrong, files = check()
    report(wrong)
    print(f"{len(chapters())} pages: every link leads somewhere")
    if len(arguments) == 2:
        folder = Path(arguments[0]).resolve()
        lay_out(folder, files)
        subprocess.run([Path(arguments[1]).resolve(), "build", folder], check=True, env={**os.environ, "MDBOOK_LOG": "warn"})
        # mdBook makes index.html a copy of the first chapter, with links that are wrong in this folder: it leads there instead.
        (folder / "html/index.html").write_text(FIRST.format(chapters()[0].with_suffix(".html")), encoding="utf-8")
        list_folders(folder / "html", files)
        wrong, pages, followed = follow(folder / "html")
        report(wrong)
        print(f"{folder / 'html/index.html'}: {pages} pages, {followed} links followed")


if __name__ == "__main__":
    main(sys.argv[1:])
