"""Sessions in blocks of steps, as on a GPU: sources join and leave between two blocks."""

import itertools

import pytest
import torch

from decoding.session_cases import KINDS, OPTIONS, SlotGraphs, check_joins, run_session
from decoding.test_block_search import assert_same
from decoding.test_presets import batch, model_of
from models.cases import VARIANTS
from models.test_ctc_decoder import joint
from regard.decoding import DecodingOptions, Ensemble, decode
from regard.decoding.graphs import DecodingGraphs
from regard.decoding.session import DecodingSession

ROWS = 19
#: of the graphs by a session: to encode, and for each block
CLAIMS = ("replay", "replay", "eager", "others", "eager", "others", "busy", "replay")


def sources_of(rows=ROWS):
    src, lengths = batch()
    return src[:rows], lengths[:rows]


JOINING = [name for name in VARIANTS if model_of(name).any_step]


@pytest.mark.sample(10)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("variant", JOINING)
def test_sources_join_between_two_blocks(variant, options):
    model = model_of(variant)
    graphs = DecodingGraphs(model, records=False)
    check_joins(model, *sources_of(), OPTIONS[options], graphs, seed=len(variant))


def test_presets_whose_sources_can_join():
    recurrent = {"bahdanau", "luong", "pointer", "memory", "gnmt", "seq2seq"}
    others = {"self-attentive", "transformer", "conv", "monotonic"}
    assert recurrent | others <= set(JOINING)


def test_sources_that_are_removed_leave_the_others_as_they_were():
    model, (src, lengths) = model_of("bahdanau"), sources_of()
    options, removed = OPTIONS["beam"], {1, 2, 7, 8, 11}
    plain = decode(model, src, lengths, options, need_weights=True, kinds=KINDS)
    graphs = DecodingGraphs(model, records=False)
    session = DecodingSession(model, options, kinds=KINDS, graphs=graphs)
    found, _, _ = run_session(session, src, lengths, 3, removed=removed)
    assert len(found) < len(src)
    for i in set(range(len(src))) - removed:
        assert_same([found[i]], [plain[i]])


def test_rows_are_padded_to_few_sizes_and_leave():
    model, (src, lengths) = model_of("bahdanau"), sources_of()
    session = DecodingSession(model, OPTIONS["beam"], graphs=DecodingGraphs(model, records=False))
    first = session.add(src[:9], lengths[:9])
    session.add(src[9:10], lengths[9:10])
    (nine, one) = session.batches
    assert (len(nine.numbers), len(one.numbers)) == (12, 1)
    assert (len(nine), len(one)) == (9, 1)
    session.step()
    (joined,) = session.batches
    assert len(joined.numbers) in (8, 12)
    session.remove([number for number in first[1:] if number in joined.numbers])
    session.step()
    assert not session.batches or len(session.batches[0].numbers) <= 2


def test_a_source_whose_logits_are_nan_gets_the_error_alone():
    model, (src, lengths) = model_of("bahdanau"), sources_of(5)
    lengths = lengths.clamp(min=1)
    with torch.no_grad():
        model.encoder.embedding.table.weight[16] = float("nan")
    src = src.clamp(max=15)
    plain = decode(model, src, lengths, OPTIONS["beam"])
    broken = src.clone()
    broken[2, 0] = 16
    session = DecodingSession(model, OPTIONS["beam"], graphs=DecodingGraphs(model, records=False))
    found, _, _ = run_session(session, broken, lengths, 1)
    assert "NaN" in str(found[2])
    for i in (0, 1, 3, 4):
        assert_same([found[i]], [plain[i]])


@pytest.mark.plain  # its graphs are no DecodingGraphs
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("variant", ["bahdanau", "transformer"])
def test_rows_survive_the_slots_of_graphs(variant, options):
    model = model_of(variant)
    for claims in (
        itertools.cycle(["replay", "replay", "eager", "others", "replay", "busy"]),
        itertools.cycle(["replay", "eager", "others", "replay", "eager"]),
    ):
        graphs = SlotGraphs(model, claims)
        check_joins(model, *sources_of(11), OPTIONS[options], graphs, seed=4)
        assert graphs.replays > 5
    session = DecodingSession(model, OPTIONS[options], graphs=SlotGraphs(model, iter(CLAIMS)))
    src, lengths = sources_of(6)
    plain = decode(model, src, lengths, OPTIONS[options])
    session.add(src, lengths)
    found = {}
    while len(session):
        found |= session.step().done
    assert_same([found[i] for i in range(6)], plain)


def test_graphs_that_others_use_leave_a_session_its_own_rows():
    """Two sessions and a search share one recorder, whose slots each of them overwrites."""
    model, (src, lengths) = model_of("bahdanau"), sources_of(8)
    options, graphs = OPTIONS["beam"], DecodingGraphs(model, records=False)
    plain = decode(model, src, lengths, options)
    sessions = [DecodingSession(model, options, graphs=graphs) for _ in range(2)]
    found = [{}, {}]
    for session in sessions:
        session.add(src, lengths)
    with graphs.claim(src) as is_free:  # by another thread
        assert is_free
        found[0] |= sessions[0].step().done
    while any(map(len, sessions)):
        for session, answers in zip(sessions, found, strict=True):
            answers |= session.step().done
            assert_same(decode(model, src, lengths, options, graphs=graphs), plain)
    for answers in found:
        assert_same([answers[i] for i in range(8)], plain)


def test_an_ensemble_joins_if_all_of_its_models_do():
    model = Ensemble([model_of("bahdanau"), model_of("luong")])
    assert model.any_step
    assert not Ensemble([model_of("bahdanau"), joint("luong")]).any_step
    graphs = DecodingGraphs(model, records=False)
    check_joins(model, *sources_of(9), OPTIONS["beam"], graphs, seed=5)


def test_a_target_of_no_tokens():
    model, (src, lengths) = model_of("bahdanau"), sources_of(3)
    options = DecodingOptions(beam=2, max_len=0)
    session = DecodingSession(model, options, graphs=DecodingGraphs(model, records=False))
    found, _, _ = run_session(session, src, lengths, 0)
    assert [hypotheses[0].tokens for hypotheses in found.values()] == [[], [], []]
