import pytest
import torch
from torch import nn

from ops.rule import DTYPES, accept, where
from regard.errors import BackendError
from regard.ops import (
    AdditiveScore,
    AttentiveState,
    AttentiveWeights,
    DotScore,
    attentive_rnn,
    use_backend,
)
from regard.ops.attentive_rnn import PATHS
from regard.ops.self_attentive_rnn import GATES

BATCH, LENGTH, KEYS, HIDDEN, SCORE_DIM, VALUE = 3, 5, 7, 4, 11, 2

#: the paths on trial; a new one is put to every test below by adding its name
BACKENDS = ["triton"]
CELLS = ["rnn", "gru", "lstm"]
SCORES = ["dot", "scaled", "additive"]
every_cell = pytest.mark.parametrize("cell", CELLS)
every_score = pytest.mark.parametrize("score", SCORES)


def tensors_of(cell, score, length=LENGTH, dtype=torch.float64, device="cpu"):
    gates, width = GATES[cell] * HIDDEN, HIDDEN if score == "dot" else SCORE_DIM
    shapes = {
        "inputs": (BATCH, length, gates),
        "hidden": (BATCH, HIDDEN),
        "context": (BATCH, VALUE),
        "context_weight": (gates, VALUE),
        "hidden_weight": (gates, HIDDEN),
        "bias": (gates,),
        "key": (BATCH, KEYS, width),
        "value": (BATCH, KEYS, VALUE),
    }
    if cell == "lstm":
        shapes["memory"] = (BATCH, HIDDEN)
    if score != "dot":
        shapes["query_weight"] = (width, HIDDEN)
    if score == "additive":
        shapes["v"] = (width,)

    def made(name):
        # weights of the size that layers have: larger ones make the recurrence chaotic
        size = shapes[name][-1] ** -0.5 if name.endswith("weight") else 1.0
        return (size * torch.randn(shapes[name])).to(device, dtype)

    return {name: made(name) for name in shapes}


def mask_of(kind, device="cpu"):
    mask = torch.ones(BATCH, KEYS, dtype=torch.bool, device=device)
    if kind != "none":
        mask[1, 4:] = False
    if kind == "blind row":
        mask[2] = False
    return mask


def score_of(score, tensors):
    query = tensors.get("query_weight")
    if score == "additive":
        return AdditiveScore(query, query, tensors["v"])
    return DotScore(1.0 if score == "dot" else SCORE_DIM**-0.5, query)


def run(backend, cell, score, tensors, mask, **options):
    with use_backend(backend):
        return attentive_rnn(
            tensors["inputs"],
            AttentiveState(tensors["hidden"], tensors.get("memory"), tensors["context"]),
            AttentiveWeights(
                tensors["context_weight"], tensors["hidden_weight"], tensors.get("bias")
            ),
            score_of(score, tensors),
            tensors["key"],
            tensors["value"],
            mask,
            cell=cell,
            **options,
        )


def by(backend, cell, score, mask):
    """The operator by one backend, as the rule wants it: tensors by name in, a list out."""

    def op(**tensors):
        out = run(backend, cell, score, tensors, mask)
        return [out.hidden, out.context, *(part for part in out.end if part is not None)]

    return op


def test_every_path_is_on_trial():
    assert {*BACKENDS, "torch", "reference"} == PATHS.keys()


@pytest.mark.pairwise
@every_cell
@every_score
@pytest.mark.parametrize("kind", ["none", "padding", "blind row"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("backend", "device"), where(*BACKENDS))
def test_paths_keep_the_rule(cell, score, kind, dtype, backend, device):
    tensors = tensors_of(cell, score, dtype=dtype, device=device)
    mask = mask_of(kind, device)
    if dtype == torch.float64:  # the kernels compute in float32
        with pytest.raises(BackendError, match="float64"):
            by(backend, cell, score, mask)(**tensors)
        return
    accept(by(backend, cell, score, mask), by("reference", cell, score, mask), tensors)


class Own:
    """A score that no kernel knows."""

    def __init__(self, score):
        self.query, self.key, self.scores = score.query, score.key, score.scores


@pytest.mark.pairwise
@pytest.mark.parametrize("score", [*SCORES, "own"])
@pytest.mark.parametrize("kind", ["none", "blind row"])
def test_weights_are_those_that_made_the_contexts(score, kind, monkeypatch):
    tensors, mask = tensors_of("gru", "additive" if score == "own" else score), mask_of(kind)
    if score == "own":
        monkeypatch.setitem(globals(), "score_of", lambda _, t, of=score_of: Own(of("additive", t)))
    out = run("reference", "gru", score, tensors, mask, need_weights=True)
    assert out.weights.shape == (BATCH, 1, LENGTH, KEYS)
    expected = torch.einsum("btk,bkd->btd", out.weights[:, 0], tensors["value"])
    torch.testing.assert_close(expected, out.context)
    torch.testing.assert_close(
        out.weights.sum(dim=3)[:, 0], mask.any(1)[:, None].expand(-1, LENGTH).double()
    )
    assert run("reference", "gru", score, tensors, mask).weights is None


@every_cell
def test_it_is_torchs_cell_over_inputs_and_contexts(cell):
    width = 3
    module = {"rnn": nn.RNNCell, "gru": nn.GRUCell, "lstm": nn.LSTMCell}[cell]
    module = module(width + VALUE, HIDDEN).double()
    tensors = tensors_of(cell, "additive")
    x = torch.randn(BATCH, LENGTH, width, dtype=torch.float64)
    tensors |= {
        "inputs": x @ module.weight_ih[:, :width].T + module.bias_ih,
        "context_weight": module.weight_ih[:, width:],
        "hidden_weight": module.weight_hh,
        "bias": module.bias_hh,
    }
    mask = mask_of("padding")
    out = run("reference", cell, "additive", tensors, mask)
    hidden, memory, context = (tensors.get(name) for name in ("hidden", "memory", "context"))
    for t in range(LENGTH):
        both = torch.cat([x[:, t], context], dim=1)
        after = module(both, hidden if memory is None else (hidden, memory))
        hidden, memory = after if cell == "lstm" else (after, None)
        query = hidden @ tensors["query_weight"].T
        scores = torch.tanh(query[:, None] + tensors["key"]) @ tensors["v"]
        look = scores.masked_fill(~mask, float("-inf")).softmax(dim=1)
        context = (look[..., None] * tensors["value"]).sum(dim=1)
        torch.testing.assert_close(out.hidden[:, t], hidden, rtol=0, atol=1e-12)
        torch.testing.assert_close(out.context[:, t], context, rtol=0, atol=1e-12)


@every_cell
def test_going_on_from_the_end_is_one_long_run(cell):
    tensors, mask = tensors_of(cell, "scaled"), mask_of("padding")
    whole = run("reference", cell, "scaled", tensors, mask)
    first = run("reference", cell, "scaled", tensors | {"inputs": tensors["inputs"][:, :2]}, mask)
    hidden, memory, context = first.end
    rest = tensors | {"inputs": tensors["inputs"][:, 2:], "hidden": hidden, "context": context}
    rest |= {} if memory is None else {"memory": memory}
    second = run("reference", cell, "scaled", rest, mask)
    torch.testing.assert_close(second.hidden, whole.hidden[:, 2:], rtol=0, atol=1e-12)
    torch.testing.assert_close(second.end.context, whole.end.context, rtol=0, atol=1e-12)
