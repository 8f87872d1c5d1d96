import pytest

from cli.tools import SMALL, done, regard, reversed_pairs, tagged_pairs


def train(folder, name, content, *settings):
    (folder / f"{name}.tsv").write_text(content, encoding="utf-8")
    done(regard("train", folder / f"{name}.tsv", "-o", folder / name, "-q", *SMALL, *settings))
    return folder / name


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="session")
def run(runs):
    """A run that has seen reversed words for a moment; its data is beside it, as `run.tsv`."""
    return train(runs, "run", reversed_pairs(300), "steps=30")


@pytest.fixture(scope="session")
def sister(runs, run):
    """Another run of the same data."""
    return train(runs, "sister", reversed_pairs(300), "steps=2", "seed=2")


@pytest.fixture(scope="session")
def stranger(runs):
    """A run with other letters."""
    content = reversed_pairs(60).translate(str.maketrans("abcdefgh", "ijklmnop"))
    return train(runs, "stranger", content, "steps=1")


@pytest.fixture(scope="session")
def tagged(runs):
    """A run with features."""
    return train(runs, "tagged", tagged_pairs(120), "steps=2")


@pytest.fixture
def pairs(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text(reversed_pairs(60), encoding="utf-8")
    return path


@pytest.fixture
def in_folder(tmp_path, monkeypatch):
    """An empty folder to stand in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
