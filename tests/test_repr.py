"""What a user sees of regard's own objects: in `dir`, in completion, and in the interpreter."""

import inspect

import numpy as np
import pytest
import torch

import regard
from api.test_output import run_folder
from regard import decoding, evaluation
from regard.api.evaluate_pairs import EvaluationResult, MetricRow
from regard.seeing import Map, Text, Trace, select


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return regard.load(run_folder(tmp_path_factory.mktemp("runs") / "abc", "bahdanau"))


def test_a_model_says_what_it_is(model):
    said = repr(model)
    assert said.startswith("Model('")
    weights = sum(weight.numel() for weight in model.module.parameters())
    for part in ("abc', ", "preset='bahdanau'", f"weights={weights}", "size=", "device='cpu'"):
        assert part in said
    assert f"reads='char, {model.src_tokenizer.vocab_size}'" in said
    assert f"writes='space, {model.tgt_tokenizer.vocab_size}'" in said


def test_an_output_is_its_text_and_its_score(model):
    out = model("abc", nbest=2, beam=3)
    assert (
        repr(out) == f"Output({out.text!r}, score={out.score:.4g}, maps=['cross'], alternatives=1)"
    )
    plain = model("abc", attention=False)
    assert repr(plain) == f"Output({plain.text!r}, score={plain.score:.4g})"


def test_a_trace_is_what_was_read_and_written():
    weights = np.full((2, 3, 5), 0.2, dtype=np.float32)
    source, target = Text.of(["a", "b", "c", "d", "e"]), Text.of(["x", "y", "z"])
    trace = Trace(source, target, (Map.of("cross", 0, weights),))
    assert repr(trace) == "Trace('a b c d e' -> 'x y z', maps=['cross'])"
    assert repr(trace.maps[0]) == "Map('cross', layer=0, weights=(2, 3, 5))"
    assert repr(source) == "Text('a b c d e', tokens=5)"
    assert repr(select(trace)).endswith("weights=(3, 5))")


def test_results_are_one_line():
    row = MetricRow("per", 0.125, 0.1, 0.15, "per|tok:space")
    assert repr(EvaluationResult(8, [row], [], None)) == "EvaluationResult(pairs=8, per=0.125)"
    found = evaluation.Perplexity(np.log(7) * 5, 2, 5, 3, 1, np.ones((2, 3)))
    assert repr(found) == "Perplexity(7, texts=2, tokens=5, words=3, unknown=1)"
    maps = {"cross": (torch.ones(1, 3, 5),)}
    hypothesis = decoding.Hypothesis([5, 7], -1.5, -1.5, [-0.5, -0.5, -0.5], maps, finished=False)
    assert (
        repr(hypothesis) == "Hypothesis(2 tokens, score=-1.5, attention=['cross'], finished=False)"
    )


def test_every_public_class_describes_itself():
    classes = [thing for name in dir(regard) if inspect.isclass(thing := getattr(regard, name))]
    assert classes
    assert all(cls.__repr__ is not object.__repr__ for cls in classes)
