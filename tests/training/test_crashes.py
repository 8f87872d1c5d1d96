"""Runs that are stopped anywhere end as one that is not, and no flipped bit goes unnoticed.

`make test` takes samples. REGARD_KILLS, REGARD_POINTS and REGARD_FLIPS say how many of each there
shall be, REGARD_POINTS=0 takes all, and REGARD_JOBS says how many run at a time.
"""

import os
import shutil

import pytest

from training.crashes import KINDS, _said, run, run_trials
from training.tools import write_pairs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning"),
]

SAMPLES = {
    "kills": ("REGARD_KILLS", 2),
    "points": ("REGARD_POINTS", 6),
    "flips": ("REGARD_FLIPS", 12),
}


@pytest.mark.timeout(0 if set(os.environ) & {name for name, _ in SAMPLES.values()} else 600)
@pytest.mark.parametrize("what", SAMPLES)
def test_nothing_is_lost(what, tmp_path, capsys):
    name, default = SAMPLES[what]
    count, jobs = int(os.environ.get(name, default)), int(os.environ.get("REGARD_JOBS", "1"))
    verdicts = run_trials(what, count, tmp_path, jobs)
    with capsys.disabled():
        print(f" {len(verdicts)} {what}", end="")
    assert len(verdicts) >= max(count, 1)
    assert [verdict for verdict in verdicts if verdict.problem] == []


def test_what_is_whole_is_not_complained_of(tmp_path):
    """Or a flipped bit would be noticed whatever is flipped."""
    run(write_pairs(tmp_path / "pairs.tsv", count=60), tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    said = _said(tmp_path / "copy")
    files = [path for pattern in KINDS.values() for path in (tmp_path / "run").glob(pattern)]
    assert len(files) > len(KINDS)
    steps = [path for path in files if path.stem.startswith("step-")]
    assert not [path.name for path in files if path.name in said]
    assert not [path.stem for path in steps if path.stem in said]
