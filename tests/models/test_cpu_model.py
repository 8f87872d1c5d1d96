"""Compiled steps on the CPU: a search finds what it finds with the model's own steps."""

import pytest
import torch

from models.cases import SRC_VOCAB, VARIANTS, build
from regard.decoding import DecodingOptions, decode
from regard.decoding.ensemble import Ensemble
from regard.errors import ArgumentError
from regard.models import int8
from regard.models.int8 import Int8Linear, Int8OutputLayer, int8_copy, int8_engine
from regard.ops import use_backend
from regard.ops.backend import HAS_NUMBA

if not HAS_NUMBA:
    pytest.skip("numba is not installed", allow_module_level=True)

from regard.models.cpu import CpuModel, recurrent, refuse_cpu_model

# not part of `make check`: where nothing is cached, its kernels take many seconds to compile
pytestmark = pytest.mark.slow

BATCH, SRC_LEN = 11, 7
#: models whose steps are compiled: variants of presets, and what is changed in them
COMPILED = {
    "transformer": {},
    "transformer-post-norm": {},
    "transformer-tied": {},
    "transformer-gelu": {},
    "bahdanau": {"layers": 1},
    "bahdanau-lstm": {"layers": 1},
    "bahdanau-rnn": {"layers": 1, "cell": "rnn"},
    "bahdanau-tied": {"layers": 1},
}


def compiled(name, **more):
    """A model of `COMPILED`."""
    variant = name if name in VARIANTS else name.split("-")[0]
    model = build(variant, **COMPILED[name], **more).eval()
    if name == "transformer-gelu":
        for layer in model.decoder.decoder.layers:
            layer.feed_forward.activation = "gelu"
    return model


@pytest.mark.parametrize("large", [1, 1 << 30])
@pytest.mark.parametrize("biased", [False, True])
def test_products_are_those_of_float64(large, biased, monkeypatch):
    monkeypatch.setattr(int8, "LARGE", large)
    draw = torch.Generator().manual_seed(6)
    weight, bias = torch.randn(67, 13, generator=draw), torch.randn(67, generator=draw)
    run = int8.product(weight, bias if biased else None, int8=False)
    for rows in ((1,), (5,), (17,), (3, 2)):
        x = torch.randn(*rows, 13, generator=draw)
        expected = x.double() @ weight.double().T + biased * bias.double()
        torch.testing.assert_close(run(x).double(), expected, atol=1e-5, rtol=0)


def sharp(name):
    """A model with weights so large that no two hypotheses tie."""
    model = compiled(name)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3 if weight.ndim > 1 else 1)
    return model


def batch(shortest=0):
    draw = torch.Generator().manual_seed(5)
    src = torch.randint(4, SRC_VOCAB, (BATCH, SRC_LEN), generator=draw)
    lengths = torch.randint(shortest, SRC_LEN + 1, (BATCH,), generator=draw)
    lengths[:3] = torch.tensor([SRC_LEN, shortest, 1])
    return src, lengths


def assert_same(found, expected, tolerance=1e-4):
    for one, other in zip(found, expected, strict=True):
        assert [h.tokens for h in one] == [h.tokens for h in other]
        assert [h.finished for h in one] == [h.finished for h in other]
        for a, b in zip(one, other, strict=True):
            assert a.token_log_probs == pytest.approx(b.token_log_probs, abs=tolerance)
            assert a.score == pytest.approx(b.score, abs=tolerance)


@pytest.mark.sample(3)
@pytest.mark.parametrize(("name", "shortest"), [*((name, 0) for name in COMPILED), ("bahdanau", 1)])
def test_a_search_finds_the_same(name, shortest):
    model = sharp(name)
    assert refuse_cpu_model(model) is None
    options = DecodingOptions(beam=4, nbest=3, max_len_ratio=1.0, max_len_extra=2)
    given = (*batch(shortest), options)
    assert_same(decode(CpuModel(model), *given), decode(model, *given))


@pytest.mark.parametrize("stop", ["full", "heuristic"])
def test_a_search_that_stops_early_finds_the_same(stop):
    model, given = sharp("transformer"), batch()
    options = DecodingOptions(beam=4, nbest=3, max_len=7, early_stopping=stop)
    assert_same(decode(CpuModel(model), *given, options), decode(model, *given, options))


def test_a_search_with_first_tokens_finds_the_same():
    model, given = sharp("transformer"), batch()
    prefix = [[4 + i % 9] * (1 + i % 3) for i in range(BATCH)]
    options = DecodingOptions(beam=4, nbest=3, max_len=7, prefix=prefix, forced=1)
    assert_same(decode(CpuModel(model), *given, options), decode(model, *given, options))


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", ["bahdanau", "bahdanau-lstm", "bahdanau-tied"])
def test_gates_of_tokens_are_computed_when_they_are_read(name, monkeypatch):
    monkeypatch.setattr(recurrent, "TABLE", 0)
    monkeypatch.setattr(recurrent, "BLOCK", 4)
    model = sharp(name)
    fast = CpuModel(model)
    fast.steps.table.fill_(float("nan"))  # until they are computed
    src, lengths = batch(1)
    decode(fast, src[:1], lengths[:1], DecodingOptions(beam=1, max_len=0))
    assert fast.steps._computed.tolist() == [True, False, False, False]  # of bos
    assert fast.steps.table[:4].isfinite().all()
    assert fast.steps.table[4:].isnan().all()
    given = (src, lengths, DecodingOptions(beam=4, nbest=3, max_len_ratio=1.0, max_len_extra=2))
    assert_same(decode(fast, *given), decode(model, *given))
    monkeypatch.setattr(recurrent, "LARGE_TABLE", 0)
    by_token = CpuModel(model)
    assert by_token.steps.table is None
    assert_same(decode(by_token, *given), decode(model, *given))


def test_maps_of_a_recurrent_decoder():
    model = sharp("bahdanau")
    src, lengths = batch(1)
    options = DecodingOptions(beam=3, nbest=2, max_len=7)
    expected = decode(model, src, lengths, options, need_weights=True)
    found = decode(CpuModel(model), src, lengths, options, need_weights=True)
    assert_same(found, expected)
    for one, other in zip(found, expected, strict=True):
        for a, b in zip(one, other, strict=True):
            torch.testing.assert_close(a.attention["cross"][0], b.attention["cross"][0])


def test_scores_of_source_vectors_are_used_with_several_beams(monkeypatch):
    """The vocabulary's scores of a source are mixed, not those of each context."""
    model = compiled("bahdanau", hidden=64)
    fast = CpuModel(model)
    calls = []
    by_context = fast.steps.by_context
    monkeypatch.setattr(fast.steps, "by_context", lambda x: calls.append(1) or by_context(x))
    given = (*batch(1), DecodingOptions(beam=5, max_len=6))
    assert_same(decode(fast, *given), decode(model, *given))
    assert len(calls) == 1
    given = (*batch(0), DecodingOptions(beam=5, max_len=6))
    assert_same(decode(fast, *given), decode(model, *given))
    assert len(calls) == 1, "an empty source has no weights that sum to 1"


def test_models_that_are_refused():
    model = build("transformer").eval()
    assert refuse_cpu_model(model) is None
    assert "maps" in refuse_cpu_model(model, need_weights=True)
    assert refuse_cpu_model(compiled("bahdanau"), need_weights=True) is None
    with use_backend("reference"):
        assert "backend" in refuse_cpu_model(model)
    assert "encoder-decoder" in refuse_cpu_model(Ensemble([model, model]))
    assert "float32" in refuse_cpu_model(build("transformer").double())
    with torch.autocast("cpu", torch.bfloat16):
        assert "autocast" in refuse_cpu_model(model)
    hook = model.register_forward_hook(lambda *_: None)
    assert "hooks" in refuse_cpu_model(model)
    hook.remove()
    assert "several layers" in refuse_cpu_model(build("bahdanau"))
    assert "not additive" in refuse_cpu_model(build("luong"))
    assert "ParallelDecoder" in refuse_cpu_model(build("gnmt"))


def test_a_model_whose_weights_change_is_prepared_again():
    model = compiled("bahdanau")
    fast = CpuModel(model)
    assert fast.is_current()
    with torch.no_grad():
        model.decoder.output.bias.add_(1.0)
    assert not fast.is_current()
    assert CpuModel(model).is_current()


@pytest.mark.parametrize("name", ["luong", "transformer", "rnn"])
def test_a_model_may_take_its_own_steps_in_a_compiled_search(name):
    model = build(name).eval()
    src, options = torch.randint(4, SRC_VOCAB, (BATCH, SRC_LEN)), DecodingOptions(beam=3, max_len=6)
    wish = {"need_weights": True, "alternatives": 2}
    found = decode(CpuModel(model, own_steps=True), src, None, options, **wish)
    expected = decode(model, src, None, options, **wish)
    assert_same(found, expected)
    for (one, *_), (other, *_) in zip(found, expected, strict=True):
        assert one.attention.keys() == other.attention.keys()


def int8_or_skip():
    try:
        return int8_engine()
    except ArgumentError:
        pytest.skip("no int8 engine on this chip")


@pytest.mark.parametrize("preset", ["transformer", "bahdanau"])
def test_int8_is_close_and_leaves_the_model_alone(preset, monkeypatch):
    int8_or_skip()
    monkeypatch.setattr("regard.models.int8.LEAST_WEIGHTS", 1)
    model = compiled(preset)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    quantised = int8_copy(model)
    kinds = {type(module) for module in quantised.modules()}
    assert {Int8Linear, Int8OutputLayer} <= kinds
    assert not any(isinstance(m, Int8Linear | Int8OutputLayer) for m in model.modules())
    src, lengths = batch(1)
    tgt = torch.randint(4, 13, (BATCH, 5))
    with torch.no_grad():
        exact, close = model(src, lengths, tgt).logits, quantised(src, lengths, tgt).logits
        fast = CpuModel(quantised)
        state = fast.start(fast.encode(src, lengths))
        steps = []
        for token in tgt.unbind(1):
            out = fast.step(token, state)
            state = out.state
            steps.append(out.logits)
    for logits in (close, torch.stack(steps, dim=1)):
        assert not torch.equal(logits, exact)
        assert (logits - exact).norm() < 0.05 * exact.norm()
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, before[name])
