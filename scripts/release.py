#!/usr/bin/env python3
"""release.py BINARY IMAGE SBOM NOTICES OUT: leaves at OUT what a release consists of, with the sums of all its files.

The pieces are held against each other first: one version in the program, Cargo.toml, the chart, the SBOM, the image and the changelog; one
program in the image, the SBOM and the archives; one image in the manifest, the chart and the archive. The same pieces give the same bytes.
"""
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CHART, MANIFEST = "deploy/helm/navigator", "deploy/navigator.yaml"
NOTICES, SUMS, NOTES = "THIRD-PARTY-NOTICES.txt", "SHA256SUMS", "RELEASE-NOTES.md"


class Unfit(Exception):
    """What keeps these pieces from being a release, one line each."""


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def section(changelog, name):
    """The entries under a heading of the changelog; none where there is no such heading."""
    found = re.search(rf"^## \[{re.escape(name)}\].*?\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    return found and found[1].strip()


class Image:
    """An image as `make image` leaves it: the archive that `docker save` writes."""

    def __init__(self, path):
        with tarfile.open(path) as archive:
            (entry,) = json.load(archive.extractfile("manifest.json"))
            self.names = entry["RepoTags"]
            config = json.load(archive.extractfile(entry["Config"]))
            self.labels = config["config"].get("Labels") or {}
            self.platform = f"{config['os']}/{config['architecture']}"
            self.files = {}
            for layer in entry["Layers"]:
                with tarfile.open(fileobj=io.BytesIO(archive.extractfile(layer).read())) as files:
                    self.files |= {f.name.lstrip("./"): files.extractfile(f).read() for f in files if f.isfile()}


class Release:
    def __init__(self, tree, binary, image, sbom, notices, when):
        missing = [str(path) for path in (binary, image, sbom, notices, *(tree / name for name in (CHART, MANIFEST, "LICENSE", "CHANGELOG.md")))
                   if not Path(path).exists()]
        if missing:
            raise Unfit("\n".join(f"{path}: missing" for path in missing))
        self.tree, self.program, self.image_file, self.when = tree, Path(binary), Path(image), when
        self.binary, self.sbom, self.notices = (Path(path).read_bytes() for path in (binary, sbom, notices))
        self.license, self.changelog = (tree / "LICENSE").read_bytes(), (tree / "CHANGELOG.md").read_text()
        self.version = tomllib.loads((tree / "Cargo.toml").read_text())["package"]["version"]
        said = json.loads(self.ask("version", "--output", "json"))
        self.platform, self.said = said["platform"], said["version"]
        self.image_name, self.manifest = self.ask("manifest", "--print-image").strip(), self.ask("manifest")

    def ask(self, *words):
        return subprocess.run([self.program.resolve(), *words], check=True, capture_output=True, text=True).stdout

    def problems(self):
        """What does not fit together."""
        image, bom = Image(self.image_file), json.loads(self.sbom)["metadata"]["component"]
        chart = dict(re.findall(r"^(version|appVersion): *['\"]?([^'\"\s]+)", (self.tree / CHART / "Chart.yaml").read_text(), re.MULTILINE))
        values = (self.tree / CHART / "values.yaml").read_text().partition("\nimage:\n")[2]
        place = dict(re.findall(r"^  (registry|repository): (\S+)$", values, re.MULTILINE))
        tag = f"v{self.version}"
        for what, found, wanted in [
            ("the program's version", self.said, tag),
            ("the version of the chart", chart.get("version"), self.version),
            ("the version that the chart installs", chart.get("appVersion"), tag),
            ("the image that the chart installs", f"{place.get('registry')}/{place.get('repository')}:{tag}", self.image_name),
            ("the SBOM's version", bom["version"], self.version),
            ("the program that the SBOM describes", bom["hashes"][0]["content"], sha256(self.binary)),
            ("the image's version", image.labels.get("org.opencontainers.image.version"), tag),
            ("the image's platform", image.platform, self.platform),
            ("the image's names", image.names, [self.image_name]),
            ("the image's tag", self.image_name.rpartition(":")[2], tag),
            ("the files of the image", sorted(image.files), ["licenses/" + NOTICES, "navigator"]),
            ("the program in the image", sha256(image.files.get("navigator", b"")), sha256(self.binary)),
            ("the notices in the image", sha256(image.files.get("licenses/" + NOTICES, b"")), sha256(self.notices)),
            (MANIFEST, (self.tree / MANIFEST).read_text() == self.manifest or "another than the program prints (make manifest)", True),
            ("images of " + MANIFEST, sorted(set(re.findall(r"^ +image: (\S+)$", self.manifest, re.MULTILINE))), [self.image_name]),
            ("entries of the changelog", bool(section(self.changelog, self.version)) or f"none under [{self.version}]", True),
        ]:
            if found != wanted:
                yield f"{what}: {found}" + ("" if wanted is True else f", not {wanted}")

    def notes(self):
        """The changelog of this version, and before it what came since, where a release is tried between two versions."""
        since = section(self.changelog, "Unreleased")
        text = f"# Navigator {self.version}\n\nLinks lead to files of the repository.\n\n"
        if since:
            text += f"## Since {self.version}, in no version yet\n\n{since}\n\n## {self.version}\n\n"
        return text + section(self.changelog, self.version) + "\n"

    def archive(self, entries):
        """A compressed tar of (name, content or target of a link, mode), each with the one time and no owner."""
        packed, plain = io.BytesIO(), io.BytesIO()
        with tarfile.open(fileobj=plain, mode="w", format=tarfile.GNU_FORMAT) as archive:
            for name, content, mode in entries:
                one = tarfile.TarInfo(name)
                one.mtime, one.mode = self.when, mode
                if isinstance(content, str):
                    one.type, one.linkname = tarfile.SYMTYPE, content
                    archive.addfile(one)
                else:
                    one.size = len(content)
                    archive.addfile(one, io.BytesIO(content))
        with gzip.GzipFile(fileobj=packed, mode="wb", filename="", mtime=self.when) as zipped:
            zipped.write(plain.getvalue())
        return packed.getvalue()

    def files(self):
        """Name and content of each file but the image and the sums."""
        texts = [("LICENSE", self.license, 0o644), (NOTICES, self.notices, 0o644)]
        folder, kind = f"navigator-{self.version}", f"{self.version}-{self.platform.replace('/', '-')}"
        chart = sorted(path for path in (self.tree / CHART).rglob("*") if path.is_file())
        return {
            f"navigator-{kind}.tar.gz": self.archive([(f"{folder}/navigator", self.binary, 0o755), *((f"{folder}/{n}", c, m) for n, c, m in texts)]),
            f"kubectl-navigator-{kind}.tar.gz": self.archive(
                [("kubectl-navigator", self.binary, 0o755), ("kubectl_complete-navigator", "kubectl-navigator", 0o777), *texts]),
            f"navigator-{self.version}.tgz": self.archive(
                [(f"navigator/{path.relative_to(self.tree / CHART)}", path.read_bytes(), 0o644) for path in chart]),
            f"navigator-{self.version}.yaml": self.manifest.encode(),
            f"navigator-{self.version}.cdx.json": self.sbom,
            NOTICES: self.notices,
            NOTES: self.notes().encode(),
        }

    def write(self, out):
        """All of it, or nothing."""
        told = list(self.problems())
        if told:
            raise Unfit("\n".join(told))
        part = out.with_name(out.name + ".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        for name, content in self.files().items():
            (part / name).write_bytes(content)
        shutil.copyfile(self.image_file, part / f"navigator-{self.version}-image.tar")
        sums = [f"{sha256(path.read_bytes())}  {path.name}\n" for path in sorted(part.iterdir())]
        (part / SUMS).write_text("".join(sums))
        shutil.rmtree(out, ignore_errors=True)
        os.replace(part, out)


def main():
    if len(sys.argv) != 6:
        sys.exit("usage: release.py BINARY IMAGE SBOM NOTICES OUT")
    *pieces, out = map(Path, sys.argv[1:])
    when = os.environ.get("SOURCE_DATE_EPOCH") or \
        subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    try:
        made = Release(ROOT, *pieces, int(when))
        made.write(out)
    except Unfit as unfit:
        sys.exit("\n".join(f"release.py: {line}" for line in str(unfit).splitlines()))
    for path in sorted(out.iterdir()):
        print(f"{path.stat().st_size:12,} {path}")
    if section(made.changelog, "Unreleased"):
        print(f"CHANGELOG.md has entries under Unreleased: this is {made.version} and what came since, and no version of its own")


if __name__ == "__main__":
    main()
