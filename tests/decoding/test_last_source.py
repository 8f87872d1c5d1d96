"""The rest of a search with one source left, by one CPU kernel, against step after step."""

import pytest
import torch

from models.test_cpu_model import assert_same, compiled, sharp
from regard.decoding import DecodingOptions, decode
from regard.errors import RegardError
from regard.ops.backend import HAS_NUMBA

if not HAS_NUMBA:
    pytest.skip("numba is not installed", allow_module_level=True)

from regard.decoding import cpu_path, search
from regard.models.cpu import CpuModel
from regard.models.cpu.recurrent import RecurrentSteps

SRC = torch.tensor([[5, 7, 4, 9, 6]])
CELLS = ["bahdanau", "bahdanau-lstm", "bahdanau-rnn"]
OPTIONS = {
    "greedy": {"beam": 1},
    "beam": {"beam": 3, "nbest": 2, "length_penalty": 1.0},
    "rules": {"beam": 4, "nbest": 4, "min_len": 4, "forbid_unknown": True, "length_penalty": 0.0},
}


@pytest.fixture
def calls(monkeypatch):
    """The first steps of the calls of the kernel."""
    found, take = [], cpu_path.LastSource.take

    def counted(self, beams, step, *rest):
        found.append(step)
        return take(self, beams, step, *rest)

    monkeypatch.setattr(cpu_path.LastSource, "take", counted)
    return found


def both(model, src, lengths, options, monkeypatch, **more):
    """Hypotheses by the kernel, and by one step after another."""
    found = decode(model, src, lengths, options, **more)
    with monkeypatch.context() as patch:
        patch.setattr(CpuModel, "compiled_steps", lambda *_: None)
        return found, decode(model, src, lengths, options, **more)


@pytest.mark.parametrize("scored", [False, True])
@pytest.mark.parametrize("wish", OPTIONS)
@pytest.mark.parametrize("name", CELLS)
def test_a_search_finds_the_same(name, wish, scored, calls, monkeypatch):
    monkeypatch.setattr(RecurrentSteps, "_projection_pays", lambda *_: scored)
    model = CpuModel(sharp(name))
    options = DecodingOptions(max_len_ratio=1.0, max_len_extra=20, **OPTIONS[wish])
    more = {"need_weights": True, "alternatives": 3}
    found, expected = both(model, SRC, None, options, monkeypatch, **more)
    assert calls[0] == 1
    assert_same(found, expected)
    for one, other in zip(found[0], expected[0], strict=True):
        torch.testing.assert_close(one.attention["cross"][0], other.attention["cross"][0])
        assert [[t for t, _ in place] for place in one.alternatives] == [
            [t for t, _ in place] for place in other.alternatives
        ]


@pytest.mark.parametrize("steps", [1, 2, 3, 16])
@pytest.mark.parametrize("name", CELLS)
def test_others_have_their_turn_after_some_steps(name, steps, monkeypatch):
    model, turns = CpuModel(compiled(name)), []
    with torch.no_grad():
        model.model.decoder.output.bias[2] -= 20  # no target ends before its limit
    model = CpuModel(model.model)
    monkeypatch.setattr(cpu_path, "MOST_STEPS", steps)
    monkeypatch.setattr(search, "preemption_point", lambda: turns.append(1))
    options = DecodingOptions(beam=2, max_len=11)
    found = decode(model, SRC, None, options)
    assert len(turns) == 1 + -(-11 // steps)
    _, expected = both(model, SRC, None, options, monkeypatch)
    assert_same(found, expected)
    assert len(found[0][0].tokens) == 11
    assert not found[0][0].finished


def test_the_last_source_of_a_batch_goes_on_alone(calls, monkeypatch):
    model = CpuModel(sharp("bahdanau"))
    src, lengths = torch.tensor([[5, 7, 4, 9, 6], [8, 4, 0, 0, 0]]), torch.tensor([5, 1])
    options = DecodingOptions(beam=3, max_len_ratio=3.0, max_len_extra=0, min_len=3)
    found, expected = both(model, src, lengths, options, monkeypatch)
    assert_same(found, expected)
    assert calls[0] > 3


def test_nan_is_an_error():
    model = compiled("bahdanau")
    with torch.no_grad():
        model.decoder.output.bias.fill_(float("nan"))
    with pytest.raises(RegardError, match="logits are NaN"):
        decode(CpuModel(model), SRC, None, DecodingOptions(beam=2))


@pytest.mark.parametrize(
    ("name", "src", "beam"),
    [
        ("bahdanau", SRC, 13),
        ("bahdanau", SRC.repeat(2, 1), 3),
        ("bahdanau-tied", SRC, 3),  # whose output layer has a projection
        ("transformer", SRC, 3),
    ],
)
def test_other_searches_take_step_after_step(name, src, beam, calls):
    options = DecodingOptions(beam=beam, max_len=6, min_len=6)
    decode(CpuModel(compiled(name)), src, None, options)
    assert not calls


@pytest.mark.parametrize("name", ["known", "output"])
def test_products_of_a_library_take_step_after_step(name, calls):
    model = CpuModel(compiled("bahdanau"))
    getattr(model.steps, name).arrays = None
    decode(model, SRC, None, DecodingOptions(beam=2))
    product = getattr(model.steps, name)
    setattr(model.steps, name, lambda x: product(x))  # as int8 weights have another class
    decode(model, SRC, None, DecodingOptions(beam=2))
    assert not calls
