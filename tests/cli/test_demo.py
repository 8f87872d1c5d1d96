"""`regard demo`, on a small dictionary in place of the bundled one."""

import gzip

import pytest

from cli.tools import done, regard, sentence, words
from regard.cli import demo
from regard.training import RunFolder

# trains or decodes with real models: not part of `make check`
pytestmark = pytest.mark.slow

SMALL = {"size": "tiny", "max_tgt_len": 10}


@pytest.fixture
def dictionary(tmp_path, monkeypatch):
    """Words and their letters, where the demo looks for phonemes."""
    folder = tmp_path / "package" / "bundled" / "cmudict"
    folder.mkdir(parents=True)
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    for name, count, seed in (("train", 200, 1), ("test", 30, 2)):
        rows = "".join(f"{w}\t{' '.join(w)}\n" for w in words(count, seed, letters))
        with gzip.open(folder / f"{name}.tsv.gz", "wt", encoding="utf-8") as file:
            file.write(rows)
    config = demo._config
    monkeypatch.setattr(demo, "TEST_WORDS", 5)
    monkeypatch.setattr(demo, "files", lambda package: tmp_path / "package")
    monkeypatch.setattr(demo, "_config", lambda data, settings: config(data, {**settings, **SMALL}))
    monkeypatch.chdir(tmp_path)
    return tmp_path


BRIEF = ("--minutes", 0.005)


def test_from_nothing_to_maps(dictionary):
    result = regard("demo", *BRIEF)
    out = done(result)
    assert "5 test words: phoneme error rate" in out
    assert "ATTENTION" in out
    assert "each row is an output" in out
    assert "echo HELLO | regard predict runs/demo" in out
    assert "pronouncing dictionary" in result.stderr
    assert RunFolder("runs/demo").finished
    answer = regard("predict", "runs/demo", stdin="HELLO\n")
    assert len(done(answer).splitlines()) == 1


@pytest.mark.long
def test_a_second_demo_takes_the_place_of_the_first(dictionary):
    done(regard("demo", *BRIEF))
    result = regard("demo", *BRIEF, "--preset", "luong")
    done(result)
    assert "held an earlier demo, which is removed" in result.stderr
    assert RunFolder("runs/demo").read_config().preset == "luong"


def test_a_run_of_the_user_is_not_removed(dictionary, run):
    before = (run / "model.safetensors").read_bytes()
    said = sentence(regard("demo", *BRIEF, "-o", run), 1)
    assert "holds another run" in said
    assert (run / "model.safetensors").read_bytes() == before


@pytest.mark.sample(1)
@pytest.mark.plain
@pytest.mark.parametrize(
    ("args", "fragments"),
    [
        (["--preset", "foo"], ["preset", "'foo'"]),
        (["--minutes", 0], ["minutes", "more than 0"]),
    ],
)
def test_bad_usage_removes_nothing(dictionary, args, fragments):
    done(regard("demo", *BRIEF))
    said = sentence(regard("demo", *args), 2)
    assert all(fragment in said for fragment in fragments)
    assert RunFolder("runs/demo").finished


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.long)])
def test_the_bundled_dictionary(in_folder, whole, monkeypatch):
    if not whole:  # every tenth word: to encode all of them takes longer than to train
        for name in ("train.tsv.gz", "test.tsv.gz"):
            write_part(demo.files("regard") / "bundled" / "cmudict" / name, in_folder / "package")
        monkeypatch.setattr(demo, "files", lambda package: in_folder / "package")
    monkeypatch.setattr(demo, "TEST_WORDS", 20)
    out = done(regard("demo", "--minutes", 0.02))
    assert "20 test words" in out


def write_part(path, package):
    """Write every tenth line of a bundled file where a package would have it."""
    folder = package / "bundled" / "cmudict"
    folder.mkdir(parents=True, exist_ok=True)
    lines = gzip.decompress(path.read_bytes()).decode().splitlines(keepends=True)
    assert len(lines) > 1000
    (folder / path.name).write_bytes(gzip.compress("".join(lines[::10]).encode()))
