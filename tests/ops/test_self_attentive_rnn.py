import pytest
import torch
from torch import nn

from ops.rule import DTYPES, LAYOUTS, accept, where
from regard.errors import BackendError
from regard.ops import AdditiveScore, DotScore, self_attentive_rnn, use_backend
from regard.ops.self_attentive_rnn import GATES, PATHS

BATCH, LENGTH, HIDDEN, SCORE_DIM, X_DIM = 2, 5, 3, 7, 11

#: the paths on trial; a new one is put to every test below by adding its name
BACKENDS = ["cpu", "triton"]


def refuses_float64(params):
    """Whether a case of the rule ends with the refusal of its type."""
    return params["dtype"] == torch.float64


CELLS = ["rnn", "gru", "lstm"]
SCORES = {
    "dot": DotScore,
    "scaled": lambda **weights: DotScore(SCORE_DIM**-0.5, **weights),
    "additive": AdditiveScore,
}
every_cell = pytest.mark.parametrize("cell", CELLS)
every_score = pytest.mark.parametrize("score", SCORES)
every_path = pytest.mark.parametrize("backend", ["reference"])


def tensors_of(cell, score, length=LENGTH, dtype=torch.float64, device="cpu"):
    gates, width = GATES[cell] * HIDDEN, HIDDEN if score == "dot" else SCORE_DIM
    shapes = {
        "inputs": (BATCH, length, gates),
        "recurrent_weight": (gates, HIDDEN),
        "recurrent_bias": (gates,),
    }
    if cell == "lstm":
        shapes["query_inputs"] = (BATCH, length, width)
    if score != "dot":
        shapes |= {"query_weight": (width, HIDDEN), "key_weight": (width, HIDDEN)}
    if score == "additive":
        shapes["v"] = (width,)
    return {name: torch.randn(shape).to(device, dtype) for name, shape in shapes.items()}


def run(backend, cell, score, tensors, **options):
    # written so that torch 2.11 can trace it too
    named = [name for name in ("recurrent_bias", "query_inputs") if name in tensors]
    weights = [name for name in ("query_weight", "key_weight", "v") if name in tensors]
    with use_backend(backend):
        return self_attentive_rnn(
            tensors["inputs"],
            tensors["recurrent_weight"],
            SCORES[score](**{name: tensors[name] for name in weights}),
            cell=cell,
            need_weights=True,
            **{name: tensors[name] for name in named},
            **options,
        )


def by(backend, cell, score, **options):
    """The operator by one backend, as the rule wants it: tensors by name in, a list out."""

    def op(**tensors):
        output = run(backend, cell, score, tensors, **options)
        return [output.hidden, output.context, output.weights, output.state.context]

    return op


def piece(tensors, start, stop):
    """The same weights, and the steps from `start` up to `stop`."""
    steps = {"inputs", "query_inputs"} & tensors.keys()
    return tensors | {name: tensors[name][:, start:stop] for name in steps}


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10)


def test_every_path_is_on_trial():
    assert {*BACKENDS, "torch", "reference"} == PATHS.keys()


def softmax(scores):
    parts = [torch.exp(score) for score in scores]
    return [part / sum(parts) for part in parts]


def align(name, weights, h, k):
    """The score of two single vectors, from the formula."""
    if name == "dot":
        return h @ k
    q, k = weights["query_weight"] @ h, weights["key_weight"] @ k
    return weights["v"] @ torch.tanh(q + k) if name == "additive" else q @ k / SCORE_DIM**0.5


@every_path
@every_score
def test_the_recurrence_against_its_formula(backend, score):
    # h_t = tanh(A [x_t, c_{t-1}] + b), a_tj = softmax_{j <= t} align(h_t, h_j), c_t = sum a_tj h_j
    x = torch.randn(BATCH, LENGTH, X_DIM, dtype=torch.float64)
    A, b = torch.randn(HIDDEN, X_DIM + HIDDEN).double(), torch.randn(HIDDEN).double()
    tensors = tensors_of("rnn", score) | {"recurrent_weight": A[:, X_DIM:], "recurrent_bias": b}
    output = run(backend, "rnn", score, tensors | {"inputs": x @ A[:, :X_DIM].T})
    for row in range(BATCH):
        c, h = torch.zeros(HIDDEN).double(), []
        for t in range(LENGTH):
            h.append(torch.tanh(A @ torch.cat([x[row, t], c]) + b))
            a = softmax([align(score, tensors, h[t], h_j) for h_j in h])
            c = sum(a_j * h_j for a_j, h_j in zip(a, h, strict=True))
            close(output.hidden[row, t], h[t])
            close(output.context[row, t], c)
            close(output.weights[row, 0, t, : t + 1], torch.stack(a))
            assert (output.weights[row, 0, t, t + 1 :] == 0).all()
        close(output.state.context[row], c)


@every_path
@every_score
def test_lstmn_against_its_formula(backend, score):
    # Cheng et al. (2016), equations 4 to 9: W_h h_i is the key, W_x x_t + W_h~ h~_{t-1} the query
    tensors = tensors_of("lstm", score)
    output = run(backend, "lstm", score, tensors)
    W, b = tensors["recurrent_weight"], tensors["recurrent_bias"]
    Q, K = (tensors.get(n, torch.eye(HIDDEN).double()) for n in ("query_weight", "key_weight"))
    for row in range(BATCH):
        h, c, h_tilde = [], [], torch.zeros(HIDDEN).double()
        for t in range(LENGTH):
            query = tensors["query_inputs"][row, t] + Q @ h_tilde
            keys = [K @ h_i for h_i in h]
            if score == "additive":
                s = softmax([tensors["v"] @ torch.tanh(query + k) for k in keys])
            else:
                s = softmax(
                    [query @ k * (SCORE_DIM**-0.5 if score == "scaled" else 1) for k in keys]
                )
            zero = torch.zeros(HIDDEN).double()
            h_tilde = sum((s_i * h_i for s_i, h_i in zip(s, h, strict=True)), zero)
            c_tilde = sum((s_i * c_i for s_i, c_i in zip(s, c, strict=True)), zero)
            gates = (tensors["inputs"][row, t] + W @ h_tilde + b).split(HIDDEN)
            i, f, o = (torch.sigmoid(gates[g]) for g in (0, 1, 3))
            c.append(f * c_tilde + i * torch.tanh(gates[2]))
            h.append(o * torch.tanh(c[t]))
            close(output.hidden[row, t], h[t])
            close(output.context[row, t], h_tilde)
            close(output.weights[row, 0, t, :t], torch.stack(s) if s else torch.zeros(0).double())
            assert (output.weights[row, 0, t, t:] == 0).all()
        close(output.state.memory[row], torch.stack(c))


class Newest:
    """A user's own score, under which every step looks at the newest one alone."""

    def query(self, state):
        return state

    def key(self, hidden):
        return hidden

    def scores(self, query, keys):
        return (1e4 * torch.arange(keys.shape[1], dtype=keys.dtype)).expand(keys.shape[0], -1)


@every_path
def test_gru_that_looks_at_itself_alone_is_a_gru(backend):
    gru = nn.GRU(X_DIM, HIDDEN, batch_first=True).double()
    x = torch.randn(BATCH, LENGTH, X_DIM, dtype=torch.float64)
    with use_backend(backend):
        output = self_attentive_rnn(
            x @ gru.weight_ih_l0.T + gru.bias_ih_l0,
            gru.weight_hh_l0,
            Newest(),
            cell="gru",
            recurrent_bias=gru.bias_hh_l0,
        )
    hidden, last = gru(x)
    close(output.hidden, hidden)
    close(output.context, hidden)
    close(output.state.context, last[0])


@pytest.mark.pairwise
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("split", [1, 2, 4])
@every_path
@every_cell
def test_two_pieces_with_the_state_carried_equal_one(backend, cell, split, grad):
    tensors = tensors_of(cell, "scaled")
    with torch.set_grad_enabled(grad):
        whole = run(backend, cell, "scaled", tensors)
        first = run(backend, cell, "scaled", piece(tensors, 0, split))
        second = run(backend, cell, "scaled", piece(tensors, split, LENGTH), state=first.state)
    close(torch.cat([first.hidden, second.hidden], dim=1), whole.hidden)
    close(torch.cat([first.context, second.context], dim=1), whole.context)
    close(second.weights, whole.weights[:, :, split:])
    close(vars(second.state), vars(whole.state))


@pytest.mark.parametrize("garbage", [1e3, float("nan")])
@every_path
@every_cell
def test_what_stands_in_the_padding_cannot_matter(backend, cell, garbage):
    lengths = torch.tensor([LENGTH, 3])
    tensors = {name: x.requires_grad_() for name, x in tensors_of(cell, "scaled").items()}
    filled = {name: x.detach().clone() for name, x in tensors.items()}
    for name in {"inputs", "query_inputs"} & filled.keys():
        filled[name][1, 3:] = garbage
    filled = {name: x.requires_grad_() for name, x in filled.items()}
    clean = by(backend, cell, "scaled", lengths=lengths)(**tensors)
    dirty = by(backend, cell, "scaled", lengths=lengths)(**filled)
    close(dirty, clean)
    for outputs in (clean, dirty):
        sum(y.square().sum() for y in outputs).backward()
    for name, x in filled.items():
        assert x.grad.isfinite().all()
        close(x.grad, tensors[name].grad)


# the first row is padding alone
PADDINGS = {"no padding": None, "padding": [0, 2]}


def keep_the_rule(backend, cell, score, tensors, padding):
    device = tensors["inputs"].device
    lengths = None if PADDINGS[padding] is None else torch.tensor(PADDINGS[padding], device=device)
    accept(
        by(backend, cell, score, lengths=lengths),
        by("reference", cell, score, lengths=lengths),
        tensors,
    )


@pytest.mark.pairwise(trivial=refuses_float64)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("padding", PADDINGS)
@every_score
@every_cell
@pytest.mark.parametrize(("backend", "device"), where(*BACKENDS))
def test_rule(backend, device, cell, score, padding, dtype):
    tensors = tensors_of(cell, score, dtype=dtype, device=device)
    if dtype == torch.float64:
        with pytest.raises(BackendError, match="float64"):
            by(backend, cell, score)(**tensors)
        return
    keep_the_rule(backend, cell, score, tensors, padding)


@pytest.mark.sample(4)
@pytest.mark.parametrize("length", [1, 31])
@every_cell
@pytest.mark.parametrize(("backend", "device"), where(*BACKENDS))
def test_rule_for_lengths(backend, device, cell, length):
    tensors = tensors_of(cell, "additive", length, torch.float32, device)
    keep_the_rule(backend, cell, "additive", tensors, "no padding")


@pytest.mark.parametrize("layout", LAYOUTS)
@every_cell
@pytest.mark.parametrize(("backend", "device"), where(*BACKENDS))
def test_rule_for_layouts(backend, device, cell, layout):
    tensors = tensors_of(cell, "scaled", dtype=torch.float32, device=device)
    tensors = {name: LAYOUTS[layout](x) for name, x in tensors.items()}
    assert not tensors["inputs"].is_contiguous()
    keep_the_rule(backend, cell, "scaled", tensors, "padding")
