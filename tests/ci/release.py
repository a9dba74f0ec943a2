#!/usr/bin/env python3
"""release.py: a release holds each of its pieces, with its sum, and is refused when one is missing or of another build; the notices name
every crate that is linked. The program, the image and the tree are small ones made here."""
import hashlib
import io
import json
import sys
import tarfile
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import notices  # noqa: E402
import release  # noqa: E402
import sbom  # noqa: E402

IMAGE = "registry.example.org/team/navigator:v1.2.3"
MANIFEST = f"kind: Deployment\nspec:\n    image: {IMAGE}\n"
PROGRAM = f"""#!/bin/sh
case "$*" in
"version --output json") echo '{{"version": "v1.2.3", "platform": "linux/amd64"}}' ;;
"manifest --print-image") echo {IMAGE} ;;
manifest) cat <<'END'
{MANIFEST.rstrip()}
END
;;
*) exit 64 ;;
esac
"""
NOTICES = b"Navigator holds code of others.\n"
TREE = {
    "Cargo.toml": '[package]\nname = "navigator"\nversion = "1.2.3"\n',
    "LICENSE": "a licence\n",
    "CHANGELOG.md": "# Changelog\n\n## [Unreleased]\n\n## [1.2.3] - 2026-11-25\n\n### Added\n- a thing\n\n## [1.2.2] - 2026-11-24\n- an older thing\n",
    "deploy/navigator.yaml": MANIFEST,
    "deploy/helm/navigator/Chart.yaml": "name: navigator\nversion: 1.2.3\nappVersion: v1.2.3\n",
    "deploy/helm/navigator/values.yaml": "# Values.\n\nimage:\n  # Registry.\n  registry: registry.example.org\n  repository: team/navigator\n",
    "deploy/helm/navigator/templates/store.yaml": "kind: PersistentVolumeClaim\n",
}
ALL = {"SHA256SUMS", "THIRD-PARTY-NOTICES.txt", "RELEASE-NOTES.md", "navigator-1.2.3.yaml", "navigator-1.2.3.cdx.json", "navigator-1.2.3.tgz",
       "navigator-1.2.3-image.tar", "navigator-1.2.3-linux-amd64.tar.gz", "kubectl-navigator-1.2.3-linux-amd64.tar.gz"}


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def packed(files):
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name, data in files.items():
            one = tarfile.TarInfo(name)
            one.size = len(data)
            archive.addfile(one, io.BytesIO(data))
    return made.getvalue()


def image(program, names=(IMAGE,), version="v1.2.3", beside=()):
    """As `make image` leaves it."""
    config = {"os": "linux", "architecture": "amd64", "config": {"Labels": {"org.opencontainers.image.version": version}}}
    layer = {"navigator": program, "licenses/THIRD-PARTY-NOTICES.txt": NOTICES, **dict(beside)}
    return packed({
        "config.json": json.dumps(config).encode(), "layer.tar": packed(layer),
        "manifest.json": json.dumps([{"Config": "config.json", "RepoTags": list(names), "Layers": ["layer.tar"]}]).encode()})


def contents(path):
    """Name of each entry, with its mode and what it holds or points to."""
    with tarfile.open(path) as archive:
        return {one.name: (one.mode, one.linkname if one.issym() else archive.extractfile(one).read()) for one in archive}


class Releases(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.tree, self.out = Path(folder.name) / "tree", Path(folder.name) / "release"
        program = PROGRAM.encode()
        bom = {"metadata": {"component": {"version": "1.2.3", "hashes": [{"alg": "SHA-256", "content": sha256(program)}]}}}
        for name, text in TREE.items():
            self.put(name, text.encode())
        for name, data in [("bin/navigator", program), ("bin/image.tar", image(program)), ("bin/sbom.json", json.dumps(bom).encode()),
                           ("bin/notices.txt", NOTICES)]:
            self.put(name, data)
        (self.tree / "bin/navigator").chmod(0o755)

    def put(self, name, data):
        path = self.tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def change(self, name, before, after):
        text = (self.tree / name).read_text()
        self.assertIn(before, text)
        (self.tree / name).write_text(text.replace(before, after))

    def make(self, when=1_700_000_000):
        pieces = (self.tree / "bin" / name for name in ("navigator", "image.tar", "sbom.json", "notices.txt"))
        release.Release(self.tree, *pieces, when).write(self.out)
        return {path.name: path.read_bytes() for path in self.out.iterdir()}

    def refused(self, *told):
        """The release is not made, and all of this is said."""
        with self.assertRaises(release.Unfit) as raised:
            self.make()
        for line in told:
            self.assertIn(line, str(raised.exception))
        self.assertFalse(self.out.exists())

    def test_it_holds_every_piece_with_its_sum(self):
        made = self.make()
        self.assertEqual(set(made), ALL)
        sums = dict(reversed(line.split("  ")) for line in made.pop("SHA256SUMS").decode().splitlines())
        self.assertEqual(sums, {name: sha256(data) for name, data in made.items()})

    def test_each_piece_is_what_it_says(self):
        made, program = self.make(), PROGRAM.encode()
        beside = {"LICENSE": (0o644, b"a licence\n"), "THIRD-PARTY-NOTICES.txt": (0o644, NOTICES)}
        self.assertEqual(contents(self.out / "navigator-1.2.3-linux-amd64.tar.gz"),
                         {f"navigator-1.2.3/{name}": entry for name, entry in {"navigator": (0o755, program), **beside}.items()})
        self.assertEqual(contents(self.out / "kubectl-navigator-1.2.3-linux-amd64.tar.gz"),
                         {"kubectl-navigator": (0o755, program), "kubectl_complete-navigator": (0o777, "kubectl-navigator"), **beside})
        chart = {name.removeprefix("deploy/helm/"): (0o644, text.encode()) for name, text in TREE.items() if name.startswith("deploy/helm/")}
        self.assertEqual(contents(self.out / "navigator-1.2.3.tgz"), chart)
        self.assertEqual(made["navigator-1.2.3.yaml"].decode(), MANIFEST)
        self.assertEqual(made["navigator-1.2.3-image.tar"], (self.tree / "bin/image.tar").read_bytes())

    def test_notes_are_those_of_the_version_and_of_what_came_since(self):
        notes = self.make()["RELEASE-NOTES.md"].decode()
        self.assertIn("- a thing\n", notes)
        self.assertNotIn("an older thing", notes)
        self.assertNotIn("Since", notes)
        self.change("CHANGELOG.md", "## [Unreleased]\n", "## [Unreleased]\n\n- a new thing\n")
        self.assertRegex(self.make()["RELEASE-NOTES.md"].decode(), r"(?s)## Since 1.2.3, in no version yet\n\n- a new thing\n\n## 1.2.3\n.*- a thing")

    def test_the_same_pieces_give_the_same_bytes(self):
        self.assertEqual(self.make(), self.make())

    def test_it_is_refused_without_a_piece(self):
        for piece in ("bin/navigator", "bin/image.tar", "bin/sbom.json", "bin/notices.txt", "LICENSE", "CHANGELOG.md", "deploy/navigator.yaml"):
            kept = (self.tree / piece).read_bytes()
            (self.tree / piece).unlink()
            self.refused(f"{piece}: missing")
            self.put(piece, kept)
            (self.tree / "bin/navigator").chmod(0o755)

    def test_it_is_refused_when_versions_differ(self):
        self.change("Cargo.toml", "1.2.3", "1.2.4")
        self.refused("the program's version: v1.2.3, not v1.2.4", "the version of the chart: 1.2.3, not 1.2.4", "the SBOM's version: 1.2.3, not 1.2.4",
                     "the image's version: v1.2.3, not v1.2.4", "entries of the changelog: none under [1.2.4]")

    def test_it_is_refused_when_the_image_is_of_another_build_or_name_or_holds_more(self):
        self.put("bin/image.tar", image(b"another", ("elsewhere:v1",), beside={"etc/passwd": b""}))
        self.refused("the program in the image:", "the image's names: ['elsewhere:v1']", "etc/passwd")

    def test_it_is_refused_when_the_sbom_is_of_another_build(self):
        self.change("bin/sbom.json", sha256(PROGRAM.encode()), sha256(b"another"))
        self.refused("the program that the SBOM describes:")

    def test_it_is_refused_when_manifest_or_chart_install_something_else(self):
        self.change("deploy/navigator.yaml", "Deployment", "DaemonSet")
        self.change("deploy/helm/navigator/values.yaml", "team/", "others/")
        self.refused("deploy/navigator.yaml: another than the program prints", "the image that the chart installs: registry.example.org/others/navigator:v1.2.3")

    def test_what_was_there_stays_when_it_is_refused(self):
        before = self.make()
        (self.tree / "bin/notices.txt").unlink()
        with self.assertRaises(release.Unfit):
            self.make()
        self.assertEqual({path.name: path.read_bytes() for path in self.out.iterdir()}, before)


class Notices(unittest.TestCase):
    def test_every_crate_that_is_linked_is_named_with_a_text(self):
        made, (root, found) = notices.notices(), sbom.crates()
        linked = {f"{e['package']['name']} {e['package']['version']}" for this, e in found.items()
                  if not e["built_with"] and (this == root or not e["own"])}
        parts = {name: numbers for name, _, _, numbers in made.parts}
        self.assertEqual(linked - set(parts), set())
        self.assertTrue(all(parts.values()))
        for other in ("jolokia-agent-jvm", "glibc", "libgcc", "rust-std"):
            self.assertTrue(any(name.startswith(f"{other} ") for name in parts), other)

    def test_texts_that_differ_by_blanks_are_one(self):
        made = notices.Notices()
        made.add("one 1", "MIT", "here", ["a  licence\n"])
        made.add("two 1", "MIT", "here", ["a\nlicence", "another"])
        self.assertEqual([numbers for *_, numbers in made.parts], [[1], [1, 2]])

    def test_a_part_without_a_text_is_refused(self):
        with self.assertRaises(SystemExit) as raised:
            notices.Notices().add("odd 1", "LGPL", "here", [])
        self.assertIn("odd 1 is under LGPL and brings no text", str(raised.exception))


if __name__ == "__main__":
    unittest.main(verbosity=2)
