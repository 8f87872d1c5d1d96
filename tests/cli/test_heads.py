"""`regard heads`: habits, importance and the alignment head."""

import json

import pytest

from api.test_output import run_folder
from cli.tools import done, regard, sentence
from regard import load
from regard.api.heads import target_nats
from regard.data.pairs import draw_sample
from regard.seeing.attribution.interventions import heads_muted, transformer_switches
from regard.seeing.trace.head_habits import head_habits
from regard.seeing.trace.trace import Trace

#: a source and a target that `run_folder` knows
PAIRS = "abc\ta b c\nhgf\tH E D\nd\tb f g\nbad\ta b H\ncab\tc a b\n"


def report(*words):
    return json.loads(done(regard("heads", *words, "--json")))


@pytest.fixture(scope="module")
def transformer(tmp_path_factory):
    """A transformer that was never trained."""
    return run_folder(tmp_path_factory.mktemp("heads") / "run", "transformer")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    (folder / "pairs.tsv").write_text(PAIRS)
    (folder / "texts.txt").write_text("".join(f"{p.split()[0]}\n" for p in PAIRS.splitlines()))
    return folder


def test_habits_are_those_of_the_traces(transformer, files):
    found = report(transformer, files / "pairs.tsv", "--ablate", "0")
    model = load(transformer)
    pairs = [line.split("\t") for line in PAIRS.splitlines()]
    expected = head_habits([model.trace(src, tgt) for src, tgt in pairs])
    assert len(found["heads"]) == len(expected)
    for one, own in zip(found["heads"], expected, strict=True):
        assert (one["kind"], one["layer"], one["head"]) == own.key
        shares = {name: habit["share"] for name, habit in one["habits"].items()}
        assert shares == pytest.approx({n: h.share for n, h in own.habits.items()}, abs=1e-5)
        assert one["importance"] is None
    assert (found["texts"], found["ablated"]) == (5, 0)


def test_importance_is_the_cost_of_the_targets_without_a_head(transformer, files):
    found = report(transformer, files / "pairs.tsv", "--ablate", "2")
    assert found["ablated"] == 2
    costs = [head["importance"]["cost"] for head in found["heads"]]
    assert costs == sorted(costs, reverse=True)
    model = load(transformer)
    drawn = sorted(draw_sample(range(5), 2))  # of all pairs, and not the first
    assert drawn != [0, 1]
    first = [PAIRS.splitlines()[i].split("\t") for i in drawn]
    sides = [src for src, _ in first], [tgt for _, tgt in first]
    one = found["heads"][0]
    key = one["kind"], one["layer"], one["head"]

    def nats():
        return -sum(model.trace(src, tgt).decoded.log_prob for src, tgt in first)

    whole = nats()
    with heads_muted([transformer_switches(model.module)[key]]):
        without = nats()
    tokens = target_nats(model, *sides)[:, 1].sum()
    assert tokens == 2 * 4
    assert one["importance"]["cost"] == pytest.approx((without - whole) / tokens, abs=1e-5)
    assert one["importance"]["low"] is None  # of two texts
    assert any("fewer than 5" in note and note[-1] != "." for note in found["notes"])
    several = report(transformer, files / "pairs.tsv", "--ablate", "7")["heads"][0]["importance"]
    assert several["low"] < several["cost"] < several["high"]


def test_the_table(transformer, files):
    out = done(regard("heads", transformer, files / "texts.txt"))
    titles, *lines = out.splitlines()
    assert titles.split()[:5] == ["kind", "layer", "head", "habit", "previous"]
    assert "cost if off" in titles
    assert sum(line.split()[0] in ("cross", "encoder-self", "decoder-self") for line in lines) == (
        len(transformer_switches(load(transformer).module))
    )
    assert "Shares of attention in 5 texts; heads were switched off on 5 of them." in out


def test_a_page(transformer, files, tmp_path):
    done(regard("heads", transformer, files / "pairs.tsv", "-o", tmp_path / "h.html"))
    page = (tmp_path / "h.html").read_text()
    assert page.count("<svg xmlns") >= len(transformer_switches(load(transformer).module))
    assert "must end in .html" in sentence(regard("heads", transformer, "a", "-o", "h.svg"), 2)


def test_what_cannot_be(transformer, tmp_path):
    (tmp_path / "empty.txt").write_text("")
    said = sentence(regard("heads", transformer, tmp_path / "empty.txt"), 2)
    assert "FILE must have a text or more" in said
    plain = run_folder(tmp_path / "plain", "seq2seq")
    assert "MODEL must have attention" in sentence(regard("heads", plain, "abc"), 2)
    assert isinstance(load(plain).trace("abc"), Trace)
