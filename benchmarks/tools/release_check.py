"""Check that a release can be published: `make release-check`, the machine's part of RELEASING.md.

    python -m benchmarks.tools.release_check             # before a release
    python -m benchmarks.tools.release_check --rehearse  # at any time: notes what a release needs

Builds the source distribution and the wheel twice from the committed files, compares them bit by
bit, and checks versions, changelog, addresses, metadata, contents, sizes and links.
"""

import argparse
import hashlib
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness import ROOT, git

#: bytes of the files that are uploaded, and of a single file in the wheel, at most
MOST_BYTES = {"wheel": 36 << 20, "sdist": 40 << 20}
MOST_FILE_BYTES = 12_000_000
#: names that no package has: caches, weights that can run code, secrets, files of tools
FORBIDDEN = re.compile(
    r"(^|/)(__pycache__|\.git|\.ci|\.venv|\.env|runs|carry|\.[a-z]+_cache)(/|$)"
    r"|\.(pyc|pyo|so|pt|pth|ckpt|pkl|pickle|npz|orig|rej|swp|log|pem|key)$"
)
#: files of the wheel that only data files of the build bring there
REQUIRED = (
    "regard/py.typed",
    *(f"regard/bundled/g2p/{name}" for name in ("model.safetensors", "card.json", "LICENSE.txt")),
    "regard/bundled/cmudict/LICENSE.txt",
    "regard/seeing/page/scripts/main.js",
    "regard/seeing/page/templates/report.html",
    "regard/recipes/files/g2p.toml",
)
#: addresses that a release needs, as `project.urls` names them
ADDRESSES = ("Homepage", "Source", "Issues", "Changelog")
LINK = re.compile(r"(?<![\w\]])!?\[[^\]]*\]\(([^)\s]*)\)")


class Finding(NamedTuple):
    """A rule that is broken; `release_only` if it may be broken until the day of a release."""

    sentence: str
    release_only: bool = False


class Built(NamedTuple):
    """The files of a build."""

    sdist: Path
    wheel: Path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rehearse", action="store_true", help="allow what only a release needs")
    args = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        for name, findings in checks(Path(folder)):
            bad = [one for one in findings if not (args.rehearse and one.release_only)]
            failed |= bool(bad)
            print(f"{'FAIL' if bad else 'note' if findings else 'ok':<5}{name}")
            for one in findings:
                print(f"     - {one.sentence}")
    print("not ready: see RELEASING.md" if failed else "ready" + " (rehearsed)" * args.rehearse)
    return int(failed)


def checks(folder: Path) -> Iterator[tuple[str, list[Finding]]]:
    """Yield each check by its name, with the rules that are broken."""
    yield "version and changelog", list(check_version(ROOT))
    yield "addresses", list(check_addresses(ROOT))
    yield "committed files", list(check_tree())
    yield "links of the README", list(check_links(ROOT))
    first, second = (build(folder / name) for name in ("first", "second"))
    yield "two builds are equal", list(check_equal(first, second))
    yield "twine check", list(check_twine(first))
    yield "metadata", list(check_metadata(wheel_metadata(first.wheel)))
    yield "contents of the wheel", list(check_wheel(first.wheel))
    yield "contents of the source distribution", list(check_sdist(first.sdist))
    for name, file in first._asdict().items():
        print(
            f"     {file.name}: {file.stat().st_size / 2**20:.1f} of {MOST_BYTES[name] >> 20} MiB"
        )


def version_of(root: Path) -> str:
    """Return the version, which is typed in one file."""
    text = (root / "src" / "regard" / "version.py").read_text()
    return re.findall(r'^__version__ = "(.+)"$', text, re.MULTILINE)[0]


def check_version(root: Path) -> Iterator[Finding]:
    """Find versions that differ, and a changelog without a dated heading."""
    version = version_of(root)
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    if "version" in project:
        yield Finding("pyproject.toml must take the version from version.py: remove its own")
    cited = re.findall(r"^version: (.+)$", (root / "CITATION.cff").read_text(), re.MULTILINE)
    if cited != [version]:
        yield Finding(f"CITATION.cff must have the version {version}, but it has {cited}")
    heading = re.findall(r"^## (.+)$", (root / "CHANGELOG.md").read_text(), re.MULTILINE)[0]
    if not heading.startswith(f"{version} "):
        yield Finding(f"CHANGELOG.md must begin with {version}, but it begins with {heading!r}")
    elif not re.fullmatch(rf"{re.escape(version)} \(\d{{4}}-\d\d-\d\d\)", heading):
        yield Finding(f"the heading {heading!r} of CHANGELOG.md must have a date", True)
    if f"v{version}" in (git("tag", "--list") or "").split():
        yield Finding(f"the tag v{version} exists already: choose the next version", True)


def check_addresses(root: Path) -> Iterator[Finding]:
    """Find addresses of the project that are not in pyproject.toml; nothing is requested."""
    urls = tomllib.loads((root / "pyproject.toml").read_text())["project"].get("urls", {})
    for name in ADDRESSES:
        if not urls.get(name, "").startswith("https://"):
            yield Finding(f"project.urls must have {name}, once the project has an address", True)


def check_tree() -> Iterator[Finding]:
    """Find files that are not committed, and so are not in the build."""
    changed = (git("status", "--porcelain") or "").splitlines()
    if changed:
        yield Finding(f"all files must be committed, but {len(changed)} are not", True)


def check_links(root: Path) -> Iterator[Finding]:
    """Find links of the README to files that do not exist, and addresses without https."""
    for target in LINK.findall((root / "README.md").read_text(encoding="utf-8")):
        if target.startswith("http:"):
            yield Finding(f"README.md must link by https, but has {target}")
        elif target.startswith(("https:", "#")):
            continue
        elif not (root / target.partition("#")[0]).exists():
            yield Finding(f"README.md links to {target}, which does not exist")


def build(folder: Path) -> Built:
    """Build from the last commit, so that files which are not committed have no part in it."""
    source, out = folder / "source", folder / "dist"
    source.mkdir(parents=True)
    archive = folder / "source.tar"
    subprocess.run(["git", "archive", "-o", str(archive), "HEAD"], cwd=ROOT, check=True)
    with tarfile.open(archive) as files:
        files.extractall(source, filter="data")
    environment = {**os.environ, "SOURCE_DATE_EPOCH": git("log", "-1", "--format=%ct") or "0"}
    command = [sys.executable, "-m", "build", "--no-isolation", "-o", str(out), str(source)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return Built(next(out.glob("*.tar.gz")), next(out.glob("*.whl")))


def check_equal(first: Built, second: Built) -> Iterator[Finding]:
    """Find files that two builds of one commit made differently."""
    for one, other in zip(first, second, strict=True):
        if sha256(one) != sha256(other):
            yield Finding(f"{one.name} must be the same each time, but two builds differ")


def sha256(file: Path) -> str:
    """Return the checksum of a file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def check_twine(built: Built) -> Iterator[Finding]:
    """Find what a package index would refuse or not render."""
    command = [sys.executable, "-m", "twine", "check", "--strict", *map(str, built)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        yield Finding(" ".join((done.stdout + done.stderr).split()))


def wheel_metadata(wheel: Path) -> Message:
    """Return the metadata of a wheel."""
    with zipfile.ZipFile(wheel) as files:
        name = next(name for name in files.namelist() if name.endswith(".dist-info/METADATA"))
        return message_from_bytes(files.read(name))


def check_metadata(metadata: Message) -> Iterator[Finding]:
    """Find metadata that are missing, and classifiers that an index does not know."""
    from trove_classifiers import classifiers

    for name in ("Name", "Version", "Summary", "License-Expression", "Requires-Python"):
        if not metadata[name]:
            yield Finding(f"the metadata must have {name}")
    if metadata["Version"] != version_of(ROOT):
        yield Finding(f"the wheel has the version {metadata['Version']}")
    for one in metadata.get_all("Classifier", []):
        if one not in classifiers:
            yield Finding(f"no index knows the classifier {one!r}")
    prose = re.sub(r"```.*?```", "", metadata.get_payload(), flags=re.DOTALL)
    if not all(target.startswith(("https://", "#")) for target in LINK.findall(prose)):
        yield Finding("the description must have no links to files, which an index does not have")


def check_wheel(wheel: Path) -> Iterator[Finding]:
    """Find files that are too many, missing or too large."""
    with zipfile.ZipFile(wheel) as files:
        sizes = {info.filename: info.file_size for info in files.infolist()}
    tops = {name.partition("/")[0] for name in sizes} - {"regard"}
    if not all(top.endswith(".dist-info") for top in tops):
        yield Finding(f"the wheel must hold the package regard alone, but it has {sorted(tops)}")
    if not any(name.endswith(".dist-info/licenses/LICENSE") for name in sizes):
        yield Finding("the wheel must hold the license")
    yield from (Finding(f"the wheel must hold {name}") for name in REQUIRED if name not in sizes)
    yield from _contents("wheel", wheel, sizes)


def check_sdist(sdist: Path) -> Iterator[Finding]:
    """Find files that are too many or too large."""
    with tarfile.open(sdist) as files:
        sizes = {one.name.partition("/")[2]: one.size for one in files.getmembers()}
    if "tests/test_package.py" not in sizes or "constraints.txt" not in sizes:
        yield Finding("the source distribution must hold what its tests need")
    yield from _contents("sdist", sdist, sizes)


def _contents(kind: str, file: Path, sizes: dict[str, int]) -> Iterator[Finding]:
    yield from (Finding(f"{name} must not be in it") for name in sizes if FORBIDDEN.search(name))
    for name, size in sizes.items():
        if size > MOST_FILE_BYTES:
            yield Finding(f"{name} has {size:,} bytes, and a file may have {MOST_FILE_BYTES:,}")
    if file.stat().st_size > MOST_BYTES[kind]:
        yield Finding(f"{file.name} has {file.stat().st_size:,} bytes of {MOST_BYTES[kind]:,}")


if __name__ == "__main__":
    sys.exit(main())
