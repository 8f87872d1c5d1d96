"""The strongest weights of each row: against all weights, which torch computes."""

import base64
import csv
import io
import json
import re
import zlib

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import regard
from regard.errors import ArgumentError
from regard.seeing.trace import long_trace as top_weights
from regard.seeing.trace.long_trace import LongTrace
from regard.seeing.trace.trace import Text, Token, TraceError

BATCH, HEADS, LENGTH, DIM = 2, 3, 11, 5


class Fused(nn.Module):
    """Calls the fused kernel with random queries and keys."""

    def __init__(self, q_len=LENGTH, kv_len=LENGTH, batch=BATCH, heads=HEADS, **options):
        super().__init__()
        torch.manual_seed(1)
        self.query = torch.randn(batch, heads, q_len, DIM) * 2
        self.key = torch.randn(batch, heads, kv_len, DIM) * 2
        self.options = options
        self.eval()

    def forward(self):
        return F.scaled_dot_product_attention(self.query, self.key, self.key, **self.options)

    def weights(self):
        scores = self.query @ self.key.mT / DIM**0.5
        allowed = torch.ones(scores.shape, dtype=torch.bool)
        if self.options.get("is_causal"):
            allowed = allowed.tril()
        if "attn_mask" in self.options:
            allowed = allowed & self.options["attn_mask"]
        return scores.masked_fill(~allowed, float("-inf")).softmax(-1).nan_to_num().numpy()


class Written(Fused):
    """The same attention, written out."""

    def forward(self):
        scores = self.query @ self.key.mT / DIM**0.5
        return scores.softmax(-1) @ self.key


def captured(module, k, **options):
    with regard.capture(module, top_k_weights=k, **options) as seen:
        module()
    return seen


def check(found, weights, k):
    """Compare the rows of one map, (heads, rows, columns), with all its weights."""
    best = np.sort(weights, axis=-1)[..., ::-1][..., :k]
    assert found.kept == pytest.approx(best.sum(-1), abs=1e-5)
    assert found.peak == pytest.approx(best[..., 0], abs=1e-5)
    for head in range(len(weights)):
        dense = found.dense(head)
        kept = dense > 0
        assert (kept.sum(-1) == (best[head] > 0).sum(-1)).all()
        assert np.where(kept, weights[head], 0).sum(-1) == pytest.approx(
            best[head].sum(-1), abs=1e-5
        )
        error = np.abs(dense - np.where(kept, weights[head], 0)).max(-1)
        assert (error <= weights[head].max(-1) / 255 + 1e-6).all()


@pytest.mark.parametrize("block", [1, 1 << 20])
@pytest.mark.parametrize(
    ("module", "options", "causal"),
    [
        (Fused, {"is_causal": True}, True),
        (Fused, {"q_len": 7}, False),
        (Fused, {"attn_mask": torch.arange(LENGTH)[None] > 2}, False),
        (Fused, {"attn_mask": torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()}, True),
        (Fused, {"attn_mask": torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril(1)}, False),
        (Written, {}, False),
    ],
)
def test_the_strongest_of_each_row_are_kept(module, options, causal, block, monkeypatch):
    monkeypatch.setattr(top_weights, "BLOCK", block)
    model = module(**options)
    traces = captured(model, 4).traces
    for row, trace in enumerate(traces):
        check(trace.maps[0], model.weights()[row], 4)
    assert traces[0].maps[0].causal == causal


def test_chosen_heads_keep_their_numbers():
    model = Fused(is_causal=True)
    (found,) = captured(model, 3, heads=[2, 0]).traces[0].maps
    assert found.heads == (0, 2)
    check(found, model.weights()[0][[0, 2]], 3)


def test_grouped_queries_and_their_heads():
    model = Fused(heads=4, is_causal=True, enable_gqa=True)
    model.key = model.key[:, :2]
    (found,) = captured(model, 3, heads=[1, 3]).traces[0].maps
    whole = Fused(heads=4, is_causal=True)
    whole.key = model.key.repeat_interleave(2, dim=1)
    check(found, whole.weights()[0][[1, 3]], 3)


def test_padding_on_the_left_is_cut_off():
    mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    mask[:, :2] = False
    model = Fused(batch=1, attn_mask=mask[None, None])
    with regard.capture(model, top_k_weights=3, tokens=[list("abcdefghi")]) as seen:
        model()
    (found,) = seen.traces[0].maps
    assert found.shape == (HEADS, LENGTH - 2, LENGTH - 2)
    check(found, model.weights()[0][:, 2:, 2:], 3)


def test_small_weights_do_not_become_zero():
    model = Fused(batch=1, heads=1, q_len=1, kv_len=3)
    model.query = torch.ones(1, 1, 1, DIM)
    model.key = torch.tensor([[[[9.0] * DIM, [0.0] * DIM, [-9.0] * DIM]]])
    rows = captured(model, 3).traces[0].maps[0]
    assert rows.levels.tolist() == [[[255, 1, 1]]]


def test_no_more_rows_are_computed_at_once_than_a_block_holds(monkeypatch):
    asked = []
    monkeypatch.setattr(top_weights, "BLOCK", 2 * BATCH * HEADS * LENGTH)
    whole = top_weights._strongest

    def watched(weights, *args, **options):
        asked.append(tuple(weights.shape))
        return whole(weights, *args, **options)

    monkeypatch.setattr(top_weights, "_strongest", watched)
    captured(Fused(is_causal=True), 4)
    assert [shape[2] for shape in asked] == [2] * 5 + [1]
    assert [shape[3] for shape in asked] == [2, 4, 6, 8, 10, 11]  # later keys are not computed


def text(count):
    return Text.of([f"t{i}" for i in range(count)])


@pytest.fixture(scope="module")
def trace():
    model = Fused(batch=1, is_causal=True)
    return captured(model, 4, tokens=[f"t{i}" for i in range(LENGTH)]).traces[0]


def test_one_head_is_an_ordinary_trace_that_lacks_what_was_not_kept(trace):
    weights = Fused(batch=1, is_causal=True).weights()[0]
    one = trace.one_head(layer=0, head=1)
    (found,) = one.maps
    kept = np.sort(weights[1], axis=-1)[:, -4:].sum(-1)
    assert 1 - found.missing[0] == pytest.approx(kept, abs=0.01)
    assert one.notes[0] == "layer 0, head 1"
    assert "4 strongest weights of each row were kept" in one.notes[1]
    every = np.sort(weights, axis=-1)[..., -4:].sum(-1)
    assert f"{every.mean():.0%} of its mass on average and {every.min():.0%}" in trace.kept_note


def test_the_sharpest_head_is_chosen(trace):
    weights = Fused(batch=1, is_causal=True).weights()[0]
    sharp = weights.max(-1).mean(-1)
    found, place = trace.choose()
    assert place == sharp.argmax()
    assert trace.sharpness(found) == pytest.approx(sharp.tolist(), abs=1e-5)
    assert trace.choose(head="mean") == (found, None)


@pytest.mark.parametrize("option", [{"layer": 3}, {"head": "all"}, {"kind": "cross"}])
def test_maps_that_are_not_there_are_refused(trace, option):
    with pytest.raises(ArgumentError):
        trace.one_head(**option)


def test_tokens_must_fit(trace):
    with pytest.raises(TraceError, match="must have 3 rows and 3 columns"):
        LongTrace(text(3), text(3), trace.maps)


def test_the_page_holds_the_weights_of_each_layer(trace, tmp_path):
    trace.save(tmp_path / "x.html")
    page = (tmp_path / "x.html").read_text()
    content = json.loads(re.search(r'class="trace".*?>(\{.*?)</script>', page)[1])
    assert content["maps"][0]["strongest"] == {
        "shape": [3, 11, 11],
        "k": 4,
        "heads": [0, 1, 2],
        "element": "weights-0",
    }
    assert trace.kept_note in content["notes"]
    packed = re.search(r'id="weights-0">([^<]*)<', page)[1]
    raw = zlib.decompress(base64.b64decode(packed))
    cells, rows = 3 * 11 * 4, trace.maps[0]
    low, high = (np.frombuffer(raw[i * cells : (i + 1) * cells], np.uint8) for i in (0, 1))
    assert (low + 256 * high.astype(int) == rows.places.ravel()).all()
    assert raw[2 * cells : 3 * cells] == rows.levels.tobytes()
    peak, kept = np.frombuffer(raw[3 * cells :], "<f2").reshape(2, 3, 11)
    assert peak == pytest.approx(rows.peak, rel=1e-3)
    assert kept == pytest.approx(rows.kept, rel=1e-3)


def test_a_csv_file_has_the_kept_weights_and_the_mass_that_was_not(trace, tmp_path):
    trace.save(tmp_path / "x.csv", layer="all", head="all")
    lines = list(csv.DictReader(io.StringIO((tmp_path / "x.csv").read_text())))
    weights = Fused(batch=1, is_causal=True).weights()[0]
    assert len(lines) == 3 * (1 + 2 + 3 + 4 * 8)
    for line in lines:
        head, row, column = (int(line[name]) for name in ("head", "row", "column"))
        most = weights[head, row].max()
        assert float(line["weight"]) == pytest.approx(
            weights[head, row, column], abs=float(most) / 255
        )
        kept = np.sort(weights[head, row])[-4:].sum()
        assert float(line["hidden"]) == pytest.approx(float(1 - kept), abs=1e-5)


def test_figures_of_one_head_and_formats_that_are_refused(trace, tmp_path):
    trace.save(tmp_path / "x.svg", layer=0, head=2)
    assert "layer 0, head 2" in (tmp_path / "x.svg").read_text()
    for name, options in (("x.json", {}), ("x.csv", {"head": "mean"})):
        with pytest.raises(ArgumentError):
            trace.save(tmp_path / name, **options)
    assert "layer 0, head 2" in str(trace.show(layer=0, head=2))


def test_a_special_token_makes_no_head_sharp():
    tokens = (Token("<s>", special=True), Token("a"), Token("b"))
    found = top_weights.TopMap(
        *("cross", 0, "target", "source", False, (0,), (1, 3, 3)),
        np.array([[[0, 1], [0, 1], [2, 0]]], dtype=np.uint32),
        np.array([[[255, 0], [255, 128], [255, 255]]], dtype=np.uint8),
        np.array([[1.0, 0.8, 0.5]], dtype=np.float32),
        np.array([[1.0, 1.0, 1.0]], dtype=np.float32),
    )
    trace = LongTrace(Text("", tokens), Text("", tokens), (found,))
    assert trace.sharpness(found) == pytest.approx([(0.8 * (128 / 255) ** 2 + 0.5) / 2])
