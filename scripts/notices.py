#!/usr/bin/env python3
"""notices.py OUT: writes what the licences of others ask to be handed on with the binary: each part, its licence, and each text once.

Texts come from where the code comes from: the sources of the crates, as cargo fetched them, the Rust toolchain, and Debian's packages
of glibc. A crate that brings no text gets the usual one, with its authors. Nothing is fetched, and the same tree gives the same file.
"""
import html
import os
import re
import sys
from pathlib import Path

from sbom import ROOT, crates, gcc_version, glibc_version, jolokia, output, rust_version

# Files of a crate that hold a licence or what must stand beside it, in any of its folders.
TEXT = re.compile(r"(LICEN[CS]E|COPYING|COPYRIGHT|NOTICE|UNLICENSE)([-_.].*)?", re.IGNORECASE)
LGPL, GLIBC = Path("/usr/share/common-licenses/LGPL-2.1"), Path("/usr/share/doc/libc6-dev/copyright")
MIT = """The MIT License

Copyright (c) {authors}

Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated documentation files (the
"Software"), to deal in the Software without restriction, including without limitation the rights to use, copy, modify, merge, publish,
distribute, sublicense, and/or sell copies of the Software, and to permit persons to whom the Software is furnished to do so, subject to the
following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF
MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY
CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE
SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE."""
HEAD = """Navigator is under the Apache License 2.0, which is the first text below. Its program also holds code of others: {count} parts, listed here
with their licences and the numbers of the texts that go with them. Where a licence leaves a choice, either may be taken.

"""


class Notices:
    """Parts and texts; texts that differ by blanks only are one."""

    def __init__(self):
        self.parts, self.texts = [], {}

    def add(self, name, licence, source, texts):
        if not texts:
            raise SystemExit(f"notices.py: {name} is under {licence} and brings no text")
        numbers = [self.texts.setdefault(" ".join(text.split()), (len(self.texts) + 1, text.strip("\n")))[0] for text in texts]
        self.parts.append((name, licence, source, sorted(set(numbers))))

    def __str__(self):
        lines = [f"{name} | {licence} | {source} | {', '.join(map(str, numbers))}" for name, licence, source, numbers in self.parts]
        texts = [f"{'=' * 30} {number} {'=' * 30}\n\n{text.rstrip()}\n" for number, text in self.texts.values()]
        return HEAD.format(count=len(self.parts) - 1) + "\n".join(lines) + "\n\n" + "\n".join(texts)


def read(path):
    """A text; fails in one line where it is not there."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").replace("\r\n", "\n").expandtabs()
    except OSError as error:
        raise SystemExit(f"notices.py: {error.filename}: {error.strerror}. Notices are made on Debian, with a Rust of rustup") from None


def texts_of(package, apache):
    """The texts that a crate brings, else the usual one."""
    folder = Path(package["manifest_path"]).parent
    found = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".rs" and TEXT.fullmatch(path.name))
    if found:
        return [read(path) for path in found]
    licence = package["license"] or ""
    if "Apache-2.0" in licence:
        return [apache]
    return [MIT.format(authors=", ".join(package["authors"]) or f"the authors of {package['name']}")] if "MIT" in licence else []


def words(markup):
    """HTML as text."""
    return html.unescape(re.sub(r"<[^>]+>", "", markup))


def rust_parts(page, licences):
    """Rust's standard library and what it is built of, of the page that comes with the compiler: name, licence, source, texts."""
    own, _, others = page.partition('<h2 id="out-of-tree-dependencies">')
    own = re.sub(r"\n\s*\n+", "\n", words(own[own.index('<h2 id="in-tree-files">'):]))
    named = [read(licences / f"{name}.txt") for name in ("Apache-2.0", "MIT", "Unicode-3.0", "BSD-2-Clause")]
    yield f"rust-std {rust_version()}", "MIT OR Apache-2.0", "https://github.com/rust-lang/rust", [own, *named]
    for part in others.split("<h3>")[1:]:
        name, licence = words(part[:part.index("</h3>")]).strip("📦 "), words(re.search(r"License:</b>(.*?)</p>", part)[1]).strip()
        texts = [words(text) for text in re.findall(r"<pre>(.*?)</pre>", part, re.DOTALL)]
        # Crates without a text belong to other systems than Linux.
        if texts:
            yield f"rust-std: {name}", licence, re.search(r'URL:</b> <a href="([^"]+)"', part)[1], texts


def notices():
    made, apache = Notices(), read(ROOT / "LICENSE")
    root, found = crates()
    own = found[root]["package"]
    made.add(f"{own['name']} {own['version']}", own["license"], own["repository"], [apache])
    linked = [entry["package"] for this, entry in found.items() if not entry["own"] and not entry["built_with"]]
    for package in sorted(linked, key=lambda package: (package["name"], package["version"])):
        name = f"{package['name']} {package['version']}"
        made.add(name, package["license"], f"https://crates.io/crates/{package['name']}/{package['version']}", texts_of(package, apache))
    made.add(f"jolokia-agent-jvm {jolokia()['version']}", "Apache-2.0", "https://github.com/jolokia/jolokia", [apache])
    made.add("definitions of Kubernetes' API (src/api/schema/kubernetes.json)", "Apache-2.0", "https://github.com/kubernetes/kubernetes", [apache])
    docs = Path(output("rustc", "--print", "sysroot")) / "share/doc/rust"
    for part in rust_parts(read(docs / "COPYRIGHT-library.html"), docs / "licenses"):
        made.add(*part)
    made.add(f"glibc {glibc_version()}", "LGPL-2.1-or-later", "https://sourceware.org/glibc", [read(GLIBC), read(LGPL)])
    made.add(f"libgcc {gcc_version()}", "GPL-3.0-or-later WITH GCC-exception-3.1", "https://gcc.gnu.org",
             [read(docs / "licenses/GCC-exception-3.1.txt"), read(docs / "licenses/GPL-3.0-or-later.txt")])
    return made


def main():
    made, out = notices(), Path(sys.argv[1])
    part = out.with_name(out.name + ".part")
    part.write_text(str(made), encoding="utf-8")
    os.replace(part, out)
    print(f"{out}: {len(made.parts) - 1} parts of others, {len(made.texts)} texts, {out.stat().st_size // 1024} KiB")


if __name__ == "__main__":
    main()
