"""The checks of a release find what they are for; the whole of them run in `make long`."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import regard
from benchmarks.tools import release_check, wheel_check

ROOT = Path(__file__).parents[2]


def labels(svg):
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


def test_the_picture_of_the_readme_is_what_the_bundled_model_does(tmp_path):
    # `regard show g2p attention -o docs/figures/attention.svg` draws it anew
    regard.load("g2p", device="cpu")("attention").save(tmp_path / "map.svg")
    drawn, kept = (
        labels(file.read_text(encoding="utf-8"))
        for file in (tmp_path / "map.svg", ROOT / "docs" / "figures" / "attention.svg")
    )
    assert len(drawn) == len(kept) > 30
    for one, other in zip(drawn, kept, strict=True):
        if re.fullmatch(r"[\d.]+", one):
            assert float(one) == pytest.approx(float(other), abs=0.02)
        else:
            assert one == other


@pytest.mark.long
def test_a_release_can_be_rehearsed():
    command = [sys.executable, "-m", "benchmarks.tools.release_check", "--rehearse"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.endswith("ready (rehearsed)\n"), done.stdout + done.stderr


@pytest.mark.long
def test_the_wheel_works_in_an_empty_environment(tmp_path):
    wheel_file = release_check.build(tmp_path / "build").wheel
    assert wheel_check.check(tmp_path / "core", wheel_file, "")["packages"] > 10
