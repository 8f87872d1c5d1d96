import pytest
from rich.console import Console

from regard.training import RunFolder, make_config
from regard.training.setup import prepare
from training.tools import SETTINGS, write_pairs


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """Words and their letters from the end."""
    return write_pairs(tmp_path_factory.mktemp("data") / "pairs.tsv", count=120)


@pytest.fixture
def make_task(data, tmp_path):
    """Everything that a run needs before its first step."""

    def make(**settings):
        brief = {"steps": 6, "eval_every": 3, "max_tgt_len": 10}
        config = make_config({"data": str(data), **SETTINGS, **brief, **settings})
        folder = RunFolder(tmp_path / "run")
        folder.create()
        return prepare(config, folder, Console(quiet=True))

    return make
