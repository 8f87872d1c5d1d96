"""Sources that join a search while others are decoded, and leave it when they are done."""

import random

import pytest
import torch

from models.test_ctc_decoder import joint
from regard.attention import ShawRelativePositions
from regard.decoding import DecodingOptions, decode
from regard.decoding.session import DecodingSession, refuse_session
from regard.errors import ArgumentError
from regard.layers import LayerOptions, LearnedPositions, RotaryPositions, TransformerDecoder
from regard.models import PRESETS, EncoderDecoder, SequenceModel
from regard.models.cpu import CpuModel, refuse_cpu_model
from regard.models.decoders import AttentionDecoder
from regard.models.int8 import int8_copy, int8_engine
from regard.symbols import EOS

KINDS = ("cross", "decoder-self", "decoder-history", "encoder-self", "encoder-history")
SIZES = {"embed": 7, "hidden": 10}
SMALL = {
    "transformer": {"dim": 12, "heads": 3, "feed_forward": 19, "layers": 2},
    "conv": {"dim": 11, "layers": 2, "kernel": 3},
}
JOINED = ("bahdanau", "self-attentive", "transformer", "conv", "monotonic", "by kernels")


def make_model(preset):
    """A model with weights so large that its answers have different lengths."""
    torch.manual_seed(3)
    model = PRESETS[preset](23, 19, size="tiny", **SMALL.get(preset, SIZES)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3 if weight.ndim > 1 else 1)
    return model


def sources(count, seed=0):
    draw = random.Random(seed)
    lengths = [draw.choice([1, 2, 3, 5, 7, 11]) for _ in range(count)]
    return [[*(draw.randrange(4, 23) for _ in range(length)), EOS] for length in lengths]


def add(session, rows):
    width = max(map(len, rows))
    src = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    return session.add(src, torch.tensor(list(map(len, rows))))


def options_of(beam):
    return DecodingOptions(beam=beam, nbest=min(beam, 2), max_len_ratio=1.0, max_len_extra=6)


def decoded_alone(model, row, options):
    src = torch.tensor([row])
    return decode(model, src, None, options, need_weights=True, kinds=KINDS, alternatives=3)[0]


def assert_same(found, alone):
    assert [one.tokens for one in found] == [one.tokens for one in alone]
    for one, other in zip(found, alone, strict=True):
        assert one.score == pytest.approx(other.score, abs=1e-4, rel=1e-5)
        expected = pytest.approx(other.token_log_probs, abs=1e-4, rel=1e-5)
        assert one.token_log_probs == expected
        assert one.finished == other.finished
        assert set(one.attention) == set(other.attention)
        for kind, layers in one.attention.items():
            for weights, expected in zip(layers, other.attention[kind], strict=True):
                torch.testing.assert_close(weights, expected, atol=5e-4, rtol=1e-3)
        places = zip(one.alternatives, other.alternatives, strict=True)
        for likeliest, expected in places:
            close = pytest.approx([p for _, p in expected], abs=1e-4, rel=1e-5)
            assert [p for _, p in likeliest] == close


def run(session, rows, every=3, size=3):
    """Let sources join a session, `size` of them every so many steps.

    Returns the hypotheses and the streamed tokens of each.
    """
    numbers, found, streamed, steps, todo = {}, {}, {}, 0, list(range(len(rows)))
    while todo or len(session):
        if todo and steps % every == 0:
            come, todo = todo[:size], todo[size:]
            new = add(session, [rows[i] for i in come])
            numbers.update(zip(new, come, strict=True))
        done, written = session.step()
        steps += 1
        assert len(session.batches) <= 1 or not session.model.any_step
        found.update({numbers[number]: hypotheses for number, hypotheses in done.items()})
        for number, token, *_ in written:
            streamed.setdefault(numbers[number], []).append(token)
    return found, streamed


@pytest.mark.slow
@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("preset", JOINED)
def test_sources_that_come_and_go_get_what_each_would_get_alone(preset, beam):
    model = make_model("bahdanau" if preset == "by kernels" else preset)
    if preset == "conv":
        model = model.double()  # its activations are so large that the rounding of float32 shows
    options, rows = options_of(beam), sources(7)
    alone = [decoded_alone(model, row, options) for row in rows]
    searched = model
    if preset == "by kernels":
        if (reason := refuse_cpu_model(model, need_weights=True)) is not None:
            pytest.skip(reason)
        searched = CpuModel(model)
    session = DecodingSession(searched, options, kinds=KINDS, alternatives=3, stream=beam == 1)
    found, streamed = run(session, rows)
    for i, expected in enumerate(alone):
        assert_same(found[i], expected)
        if beam == 1:
            assert streamed[i] == [*expected[0].tokens, EOS]
    assert len({len(one[0].tokens) for one in alone}) > 2  # so that they leave at different steps


#: options of the layers of some variants
LAYERS = {
    "norm last": {"norm_first": False},
    "grouped heads": {"num_kv_heads": 1},
    "rotary": {"rotation": RotaryPositions(4)},
    "relative": {"position_bias": lambda: ShawRelativePositions(4, 3, values=True)},
}


def transformer_of(variant, monkeypatch):
    """A Transformer with a decoder of this kind."""
    model = make_model("transformer")
    embedding, stack = model.decoder.embedding, model.decoder.decoder
    if variant == "learned positions":
        embedding.positions = LearnedPositions(40, 12)
    if variant in LAYERS:
        options = LayerOptions(dropout=0.0, **LAYERS[variant])
        stack = TransformerDecoder(12, 3, 19, 2, options, memory_size=12)
        with torch.no_grad():
            for weight in stack.parameters():
                weight.mul_(2 if weight.ndim > 1 else 1)
        model = EncoderDecoder(model.encoder, AttentionDecoder(embedding, stack))
    if variant == "int8":
        try:
            int8_engine()
        except ArgumentError:
            pytest.skip("no int8 engine on this chip")
        monkeypatch.setattr("regard.models.int8.LEAST_WEIGHTS", 1)
        model = int8_copy(model)
    return model.eval()


TRANSFORMERS = ("sinusoidal positions", "learned positions", "norm last", "grouped heads", "int8")


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("variant", TRANSFORMERS)
def test_sources_join_the_compiled_steps_of_a_transformer(variant, beam, monkeypatch):
    model = transformer_of(variant, monkeypatch)
    if (reason := refuse_cpu_model(model)) is not None:
        pytest.skip(reason)
    searched, options, rows = CpuModel(model), options_of(beam), sources(9, seed=4)
    alone = [decode(searched, torch.tensor([row]), None, options)[0] for row in rows]
    found, _ = run(DecodingSession(searched, options), rows, every=2)
    assert len({len(one[0].tokens) for one in alone}) > 2
    if variant == "int8":  # rounds all rows of a batch by one scale, so that answers vary a little
        pairs = [(found[i][0].score, one[0].score) for i, one in enumerate(alone)]
        assert sum(abs(one - other) for one, other in pairs) < 0.1 * sum(-one for one, _ in pairs)
        return
    for i, expected in enumerate(alone):
        assert_same(found[i], expected)


@pytest.mark.parametrize("variant", ["learned positions", "rotary", "relative", "grouped heads"])
def test_sources_join_the_plain_steps_of_a_transformer(variant, monkeypatch):
    model, options, rows = transformer_of(variant, monkeypatch), options_of(3), sources(7, seed=4)
    assert model.any_step
    alone = [decoded_alone(model, row, options) for row in rows]
    found, _ = run(DecodingSession(model, options, kinds=KINDS, alternatives=3), rows, every=2)
    for i, expected in enumerate(alone):
        assert_same(found[i], expected)


def test_positions_that_nobody_knows_keep_rows_together(monkeypatch):
    model = transformer_of("sinusoidal positions", monkeypatch)
    assert model.any_step
    model.decoder.embedding.positions = torch.nn.Identity()
    assert not model.any_step
    model = transformer_of("rotary", monkeypatch)
    for layer in model.decoder.decoder.layers:
        layer.attention.rotation = torch.nn.Identity()
    assert not model.any_step


def test_a_session_without_an_end_does_not_grow():
    model = make_model("transformer")
    if (reason := refuse_cpu_model(model)) is not None:
        pytest.skip(reason)
    options, rows = DecodingOptions(beam=2, max_len=6), sources(60, seed=6)
    session, sizes, searched = DecodingSession(CpuModel(model), options), [], 0
    for row in rows:
        add(session, [row])
        for _ in range(2):
            searched += len(session.step().done)
        state = session.batches[0].state
        sizes.append((state.cache.tensor.shape[1], len(state.lengths), state.position))
    most = [max(column) for column in zip(*sizes, strict=True)]
    assert searched > 40
    assert most[0] <= 2 * 16, "positions that no row needs are dropped"
    assert most[1] <= 8, "and so are sources without rows"
    assert most[2] <= 9


@pytest.mark.parametrize("preset", ["bahdanau", "transformer"])
def test_a_source_that_is_removed_leaves_the_others_as_they_were(preset):
    model, options, rows = make_model(preset), options_of(4), sources(5, seed=2)
    session, found = DecodingSession(model, options, kinds=KINDS, alternatives=3), {}
    first = add(session, rows[:3])
    found |= session.step().done
    later = add(session, rows[3:])
    found |= session.step().done
    session.remove([first[1], later[0]])
    assert len(session) == 3 - len(found)
    while len(session):
        found |= session.step().done
    numbers = [*first, *later]
    assert sorted(found) == [first[0], first[2], later[1]]
    for number, hypotheses in found.items():
        row = rows[numbers.index(number)]
        assert_same(hypotheses, decoded_alone(model, row, options))


def test_a_source_that_has_no_target_gets_the_error_alone(monkeypatch):
    model, options, rows = make_model("bahdanau"), options_of(4), sources(3, seed=5)
    step, broken = model.step, {}

    def with_nan(tokens, state, **more):
        out = step(tokens, state, **more)
        # the state of the broken source is known by its keys
        same = (state.source.keys[:, 0] == broken["key"]).all(dim=-1)
        return out._replace(logits=out.logits.masked_fill(same[:, None], float("nan")))

    state = model.start(model.encode(torch.tensor([rows[1]]), None))
    broken["key"] = state.source.keys[0, 0].detach()
    expected = [decoded_alone(model, rows[i], options) for i in (0, 2)]
    session, found = DecodingSession(model, options, kinds=KINDS, alternatives=3), {}
    monkeypatch.setattr(model, "step", with_nan)
    numbers = [add(session, [row])[0] for row in rows]
    while len(session):
        found |= session.step().done
    assert "NaN" in str(found[numbers[1]])
    for i, alone in zip((0, 2), expected, strict=True):
        assert_same(found[numbers[i]], alone)


def test_searches_that_cannot_be_joined_are_named():
    model = make_model("bahdanau")
    assert refuse_session(model, DecodingOptions(), "cpu") is None
    assert "GPU" in refuse_session(model, DecodingOptions(), "cuda")
    assert refuse_session(model, DecodingOptions(beam=1), "cuda", stream=True) is None
    assert "same step" in refuse_session(joint("luong"), DecodingOptions(), "cuda", stream=True)
    assert "mps" in refuse_session(model, DecodingOptions(beam=1), "mps", stream=True)
    assert "random" in refuse_session(model, DecodingOptions(num_samples=2), "cpu")
    assert "constraints" in refuse_session(model, DecodingOptions(min_len=2), "cpu")
    tagger = PRESETS["rnn"](23, 19, size="tiny")
    assert isinstance(tagger, SequenceModel)
    assert "lengths" in refuse_session(tagger, DecodingOptions(), "cpu")
