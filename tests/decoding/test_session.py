"""Sources that join a search while others are decoded, and leave it when they are done."""

import random

import pytest
import torch

from regard.decoding import DecodingOptions, decode
from regard.decoding.session import DecodingSession, refuse_session
from regard.models import PRESETS, SequenceModel
from regard.models.cpu import CpuModel, refuse_cpu_model
from regard.symbols import EOS

KINDS = ("cross", "decoder-self", "decoder-history", "encoder-self", "encoder-history")
SIZES = {"embed": 7, "hidden": 10}
SMALL = {"transformer": {"dim": 12, "heads": 3, "feed_forward": 19, "layers": 2}}


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
        assert one.score == pytest.approx(other.score, abs=1e-4)
        assert one.token_log_probs == pytest.approx(other.token_log_probs, abs=1e-4)
        assert one.finished == other.finished
        assert set(one.attention) == set(other.attention)
        for kind, layers in one.attention.items():
            for weights, expected in zip(layers, other.attention[kind], strict=True):
                torch.testing.assert_close(weights, expected, atol=5e-4, rtol=1e-3)
        places = zip(one.alternatives, other.alternatives, strict=True)
        for likeliest, expected in places:
            assert [p for _, p in likeliest] == pytest.approx([p for _, p in expected], abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("preset", ["bahdanau", "self-attentive", "transformer", "by kernels"])
def test_sources_that_come_and_go_get_what_each_would_get_alone(preset, beam):
    model = make_model("bahdanau" if preset == "by kernels" else preset)
    options, rows, todo = options_of(beam), sources(7), list(range(7))
    alone = [decoded_alone(model, row, options) for row in rows]
    searched = model
    if preset == "by kernels":
        if (reason := refuse_cpu_model(model, need_weights=True)) is not None:
            pytest.skip(reason)
        searched = CpuModel(model)
    session = DecodingSession(searched, options, kinds=KINDS, alternatives=3, stream=beam == 1)
    numbers, found, streamed, steps = {}, {}, {}, 0
    while todo or len(session):
        if todo and steps % 3 == 0:
            come, todo = todo[:3], todo[3:]
            new = add(session, [rows[i] for i in come])
            numbers.update(zip(new, come, strict=True))
        done, written = session.step()
        steps += 1
        assert len(session.batches) <= 1 or not session.batches[0].state.any_step
        found.update({numbers[number]: hypotheses for number, hypotheses in done.items()})
        for number, token, *_ in written:
            streamed.setdefault(numbers[number], []).append(token)
    for i, expected in enumerate(alone):
        assert_same(found[i], expected)
        if beam == 1:
            assert streamed[i] == [*expected[0].tokens, EOS]
    assert len({len(one[0].tokens) for one in alone}) > 2  # so that they leave at different steps


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
    assert "random" in refuse_session(model, DecodingOptions(num_samples=2), "cpu")
    assert "constraints" in refuse_session(model, DecodingOptions(min_len=2), "cpu")
    tagger = PRESETS["rnn"](23, 19, size="tiny")
    assert isinstance(tagger, SequenceModel)
    assert "lengths" in refuse_session(tagger, DecodingOptions(), "cpu")
