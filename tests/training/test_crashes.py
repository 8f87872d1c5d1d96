"""Runs that are stopped anywhere end as one that is not, and no flipped bit goes unnoticed."""

import shutil

import pytest

from training.crashes import KINDS, _said, run, run_trials
from training.tools import write_pairs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning"),
]


@pytest.mark.parametrize(
    ("what", "count"),
    [("points", 4), ("flips", 12), pytest.param("points", 10**6, marks=pytest.mark.long)],
)
def test_nothing_is_lost(what, count, tmp_path):
    verdicts = run_trials(what, count, tmp_path)
    assert len(verdicts) >= 4
    assert [verdict for verdict in verdicts if verdict.problem] == []


def test_what_is_whole_is_not_complained_of(tmp_path):
    """Or a flipped bit would be noticed whatever is flipped."""
    run(write_pairs(tmp_path / "pairs.tsv", count=60), tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    said = _said(tmp_path / "copy")
    files = [path for pattern in KINDS.values() for path in (tmp_path / "run").glob(pattern)]
    assert len(files) > len(KINDS)
    assert not [path.name for path in files if path.name in said]
