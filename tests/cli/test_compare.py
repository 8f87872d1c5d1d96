"""`regard compare`: two runs, two checkpoints, two inputs."""

import json
import shutil

import pytest
import torch

import regard as package
from api.test_output import run_folder
from cli.tools import done, regard, reversed_pairs, sentence
from regard.api import load
from regard.evaluation import paired_bootstrap
from regard.training.weights_file import read_weights


def compared(*words):
    return json.loads(done(regard("compare", *words, "--json")))


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Pairs, and their sources alone."""
    folder = tmp_path_factory.mktemp("texts")
    pairs = reversed_pairs(20, seed=3)
    (folder / "pairs.tsv").write_text(pairs)
    (folder / "sources.txt").write_text("".join(f"{p.split()[0]}\n" for p in pairs.splitlines()))
    return folder


def test_two_runs_on_pairs(run, sister, texts):
    found = compared(run, sister, texts / "pairs.tsv", "--metrics", "cer")
    assert found["names"] == [str(run), str(sister)]
    pairs = [line.split("\t") for line in (texts / "pairs.tsv").read_text().splitlines()]
    outputs = []
    for path in (run, sister):
        model = package.load(path)
        outputs.append([o.text for o in model.predict([src for src, _ in pairs])])
    expected = paired_bootstrap(
        "cer", *outputs, [[tgt] for _, tgt in pairs], normalizer=package.load(run).tgt_tokenizer
    )
    (score,) = found["scores"]
    assert (score["first"], score["second"]) == (expected.first, expected.second)
    assert (score["low"], score["high"]) == (expected.low, expected.high)
    by_number = sorted(found["examples"], key=lambda one: one["number"])
    assert [one["answers"] for one in by_number] == [
        list(two) for two in zip(*outputs, strict=True)
    ]
    assert [one["reference"] for one in by_number] == [tgt for _, tgt in pairs]
    same = sum(a == b for a, b in zip(*outputs, strict=True)) / len(pairs)
    assert found["agreement"]["value"] == pytest.approx(same)


def test_the_most_different_examples_come_first_and_have_their_traces(run, sister, texts):
    found = compared(run, sister, texts / "sources.txt")
    largest = [one["distance"]["heads"][0]["distance"] for one in found["examples"]]
    assert largest == sorted(largest, reverse=True)
    assert largest[0] > largest[-1]
    assert [one["traces"] is not None for one in found["examples"]] == [True] * 12 + [False] * 8
    assert found["heads"][0]["largest"] == pytest.approx(largest[0])
    assert found["heads"][0]["example"] == found["examples"][0]["number"]
    assert found["heads"][0]["distance"] == pytest.approx(sum(largest) / len(largest))
    assert found["scores"] == []
    # without references both wrote what the first answers
    first = found["examples"][0]
    assert {trace["target"]["text"] for trace in first["traces"]} == {first["answers"][0]}


def test_the_terminal_has_scores_heads_examples_and_both_maps(run, sister, texts):
    out = done(regard("compare", run, sister, texts / "pairs.tsv"))
    assert f"A  {run}\nB  {sister}\n" in out
    for title in ("Scores", "Heads that differ most", "Examples that differ most"):
        assert f"\n{title}\n" in out
    assert "total variation" in out
    assert "8 more: --json and -o x.html have them" in out
    assert out.count("each row is an output") == 2


def test_a_page(run, sister, texts, tmp_path):
    result = regard("compare", run, sister, texts / "sources.txt", "-o", tmp_path / "c.html")
    done(result)
    assert "saved" in result.stderr
    page = (tmp_path / "c.html").read_text()
    assert page.count("<svg") >= 24
    assert "Content-Security-Policy" in page


def test_two_checkpoints_of_a_run(run, tmp_path):
    """A step has the weights of its best evaluation, or those of its checkpoint."""
    copy = shutil.copytree(run, tmp_path / "run")
    (best,) = sorted((copy / "best").glob("*.safetensors"))[-1:]
    at = load(f"{copy}@30").module.state_dict()
    expected = read_weights(best)
    assert at.keys() == expected.keys()
    assert all(torch.equal(at[name], expected[name]) for name in at)
    best.unlink()
    again = load(f"{copy}@30").module.state_dict()
    assert all(torch.allclose(again[name], expected[name]) for name in at)
    assert compared(f"{copy}@30", f"{copy}@30", "abc")["agreement"]["value"] == 1
    (tmp_path / "p.tsv").write_text("abc\tcba\n" * 5)
    assert '"pairs": 5' in done(regard("evaluate", f"{copy}@30", tmp_path / "p.tsv", "--json"))
    said = sentence(regard("compare", f"{copy}@31", copy, "abc"), 1)
    assert "must have weights of step 31" in said
    assert " 30" in said


@pytest.fixture(scope="module")
def language_models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("language")
    return [run_folder(folder / name, name) for name in ("lm-transformer", "lm-self-attentive")]


def test_models_of_two_kinds_are_refused(run, language_models):
    said = sentence(regard("compare", run, language_models[0], "abc"), 2)
    assert "both models must be of one kind" in said
