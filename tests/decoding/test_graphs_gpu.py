"""Searches that are replayed from CUDA graphs find what the plain search finds."""

import threading
import warnings
from dataclasses import replace

import pytest
import torch

from decoding.test_presets import batch, fitting_prefix, model_of
from decoding.test_search_steps import assert_same
from models.cases import VARIANTS
from regard.decoding import DecodingGraphs, DecodingOptions, Ensemble, decode
from regard.models import PRESETS

pytestmark = pytest.mark.gpu

OPTIONS = {
    "beam": DecodingOptions(beam=4, nbest=3, max_len=11, min_len=2),
    "greedy": DecodingOptions(beam=1, max_len=11),
    "rules": DecodingOptions(beam=3, max_len=11, no_repeat_ngram=3, forbid_unknown=True),
    "prefix": DecodingOptions(beam=3, max_len=11, prefix=[[5], [], *[[7, 8]] * 30]),
    "samples": DecodingOptions(num_samples=3, max_len=11, seed=5, top_p=0.9),
    "folder": DecodingOptions(beam=3, max_len=11, ends=[5], suppressed=[6], suppressed_first=[4]),
}
TIMES = 4  # eager, recorded, replayed, replayed


def searches(model, src, lengths, options, graphs, **more):
    return [decode(model, src, lengths, options, graphs=graphs, **more) for _ in range(TIMES)]


def on_gpu(variant):
    model, (src, lengths) = model_of(variant), batch()
    return model.cuda(), src.cuda(), lengths.cuda()


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("options", OPTIONS)
def test_every_preset_is_replayed(variant, options):
    model, src, lengths = on_gpu(variant)
    wish = OPTIONS[options]
    if wish.prefix:
        wish = replace(wish, prefix=fitting_prefix(model, src, lengths, wish.prefix))
    kinds = ("cross", "decoder-self", "decoder-history", "encoder-self", "memory")
    more = {"need_weights": True, "kinds": kinds}
    plain = decode(model, src, lengths, wish, **more)
    graphs = DecodingGraphs(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = searches(model, src, lengths, wish, graphs, **more)
    assert len(graphs._recordings) > 1
    for one in found:
        assert_same(one, plain)


def test_shapes_that_differ_share_graphs_and_rows_leave():
    torch.manual_seed(1)
    model = PRESETS["transformer"](300, 300, "tiny", dropout=0.0).cuda().eval()
    with torch.no_grad():
        model.decoder.output.bias[2] += 2.5  # so that rows end at different steps
    graphs = DecodingGraphs(model)
    options = DecodingOptions(beam=3, nbest=2)
    for rows, length in [
        (40, 9),
        (37, 12),
        (48, 16),
        (41, 10),
        (33, 9),
        (1, 60),
        (2, 3),
        (1, 58),
    ] * 2:
        src = torch.randint(4, 300, (rows, length), device="cuda")
        lengths = torch.randint(1, length + 1, (rows,), device="cuda")
        lengths[0] = length
        plain = decode(model, src, lengths, options, need_weights=True)
        assert_same(decode(model, src, lengths, options, need_weights=True, graphs=graphs), plain)
    assert len(graphs._recordings) > 5


def test_ensembles_are_replayed():
    models = [on_gpu(name)[0] for name in ("transformer", "bahdanau")]
    _, src, lengths = on_gpu("transformer")
    model, options = Ensemble(models), DecodingOptions(beam=3, max_len=9)
    graphs = DecodingGraphs(model)
    plain = decode(model, src, lengths, options)
    for found in searches(model, src, lengths, options, graphs):
        assert_same(found, plain)
    assert graphs._recordings


def test_weights_may_change_in_place_and_move():
    model, src, lengths = on_gpu("transformer")
    graphs, options = DecodingGraphs(model), DecodingOptions(beam=3, max_len=9)
    searches(model, src, lengths, options, graphs)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.3)
    recorded = dict(graphs._recordings)
    assert_same(
        decode(model, src, lengths, options, graphs=graphs), decode(model, src, lengths, options)
    )
    assert graphs._recordings == recorded
    model.cpu().cuda()
    assert_same(
        decode(model, src, lengths, options, graphs=graphs), decode(model, src, lengths, options)
    )
    assert not graphs._recordings


def test_a_model_with_hooks_is_called():
    model, src, lengths = on_gpu("transformer")
    graphs, options = DecodingGraphs(model), DecodingOptions(beam=2, max_len=5)
    searches(model, src, lengths, options, graphs)
    calls = []
    hook = model.decoder.register_forward_hook(lambda *args: calls.append(1))
    decode(model, src, lengths, options, graphs=graphs)
    assert len(calls) > 1
    hook.remove()
    before = len(calls)
    decode(model, src, lengths, options, graphs=graphs)
    assert len(calls) == before


def test_what_cannot_be_recorded_runs_and_is_said_once():
    model, src, lengths = on_gpu("transformer")
    own = model.step

    def step(tokens, state, **named):
        assert float(tokens.sum()) >= 0  # asks the device, which no recording can
        return own(tokens, state, **named)

    graphs, options = DecodingGraphs(model), DecodingOptions(beam=2, max_len=9)
    plain = decode(model, src, lengths, options)
    model.step = step
    with pytest.warns(UserWarning, match="not replayed from CUDA graphs") as warned:
        found = searches(model, src, lengths, options, graphs)
    assert len(warned) == 1
    for one in found:
        assert_same(one, plain)
    torch.rand(1, device="cuda")  # the generator works


def test_threads_search_beside_each_other():
    model, src, lengths = on_gpu("transformer")
    graphs, options = DecodingGraphs(model), DecodingOptions(beam=3, max_len=9)
    plain = decode(model, src, lengths, options)
    found = []

    def run():
        found.extend(decode(model, src, lengths, options, graphs=graphs) for _ in range(10))

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 30
    for one in found:
        assert_same(one, plain)
