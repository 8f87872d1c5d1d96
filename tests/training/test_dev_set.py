"""A source with several targets is judged by any of them."""

import io
from dataclasses import replace

import pytest
import torch
from rich.console import Console

from regard.evaluation import score
from regard.symbols import SYMBOLS
from regard.training import RunFolder, dev, make_config
from regard.training.examples import look
from regard.training.progress import Progress
from regard.training.setup import prepare
from training.tools import SETTINGS

DEV = ["read\tr e d", "cat\tk a t", "read\tr i d", "cat\tk a t", "dog\td o g", " read\tr e d"]


@pytest.fixture
def task(data, tmp_path):
    def make(lines=DEV, **settings):
        file = tmp_path / "dev.tsv"
        file.write_text("".join(f"{line}\n" for line in lines))
        given = {"data": str(data), "dev": str(file), **SETTINGS, "max_tgt_len": 10, **settings}
        folder = RunFolder(tmp_path / "run")
        folder.create()
        said = Console(record=True, file=io.StringIO(), width=200)
        return prepare(make_config(given), folder, said), said.export_text()

    return make


def test_sources_come_once_with_all_their_targets(task):
    found = task()[0].dev
    assert found.sources == ["read", "cat", "dog"]
    assert found.references == [["r e d", "r i d"], ["k a t"], ["d o g"]]
    assert found.rows.tolist() == [0, 1, 4]
    assert len(found.corpus) == 6


def test_it_is_announced(task):
    assert "6 dev pairs of 3 sources." in task()[1]


def test_features_tell_sources_apart(task, tmp_path):
    lines = ["go\twent\tV;PST", "go\tgoes\tV;PRS", "go\tgoed\tV;PST"]
    train = tmp_path / "train.tsv"
    train.write_text("".join(f"{line}\n" for line in lines * 4))
    found = task(lines, data=str(train), features=True, columns="0,1,2")[0].dev
    assert found.references == [["went", "goed"], ["goes"]]


def test_texts_without_a_source_are_each_by_itself(task, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("a b c\nb c a\n" * 9)
    found = task(["a b", "c a", "b"], preset="lm-rnn", data=str(text))[0].dev
    assert found.references == [["a b"], ["c a"], ["b"]]
    assert found.rows.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("said", "per", "exact"),
    [
        (["r i d", "k a t", "d o g"], 0.0, 1.0),  # the second target is as good
        (["r i t", "k a t", "d o g"], 1 / 9, 2 / 3),  # one edit from the nearest
    ],
)
def test_any_target_will_do(task, monkeypatch, said, per, exact):
    it = task(metric="per")[0]
    monkeypatch.setattr(dev, "_outputs", lambda _: said)
    found = dev.evaluate(it, Progress())
    assert found.metrics["per"] == pytest.approx(per)
    assert found.metrics["exact"] == pytest.approx(exact)
    assert found.metrics["per"] == score("per", said, it.dev.references).value


def test_outputs_are_those_of_the_sources(task):
    """What the model says to each source alone, in the order of the sources."""
    lines = ["abc\tc b a", "ab\tb a", "abc\ta b c", "hgfedc\tc d e f g h"]
    it = task(lines)[0]
    it.module.eval()
    for weight in it.module.parameters():
        torch.nn.init.normal_(weight)
    together = dev._outputs(it)
    assert len(set(together)) == 3
    for place, row in enumerate(it.dev.rows):
        alone = replace(it, dev=it.dev._replace(rows=it.dev.rows[place : place + 1]))
        assert dev._outputs(alone) == [together[place]], row
    traces = look(it, together)
    assert {trace.source.text for trace in traces} == {"abc", "ab", "hgfedc"}
    for trace in traces:
        place = it.dev.sources.index(trace.source.text)
        assert trace.target.text == it.dev.references[place][0]
        assert trace.notes == (together[place],)


def test_outputs_without_an_end_are_cut_where_no_reference_reaches(task):
    it = task(["abc\tc b a", "ab\tb a"], max_tgt_len=99)[0]
    it.module.eval()
    with torch.no_grad():
        it.module.decoder.output.bias[len(SYMBOLS)] = 1e4  # one letter for ever
    assert [len(said.split()) for said in dev._outputs(it)] == [2 * 3 + dev.EXTRA] * 2
    it.config = it.config.model_copy(update={"max_tgt_len": 5})
    assert [len(said.split()) for said in dev._outputs(it)] == [5, 5]
