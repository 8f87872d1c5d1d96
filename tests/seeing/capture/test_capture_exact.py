"""What `regard.capture` shows is exact, or a note says why it is not there."""

import copy
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import regard
from regard import ops
from regard.attention import AdditiveAttention, MultiHeadAttention
from seeing.tools import close, normal

BATCH, Q_LEN, KV_LEN, DIM, HEADS = 3, 5, 7, 6, 2


def softmax(query, key, allowed=True, bias=0.0):
    scores = query.double() @ key.double().mT / query.shape[-1] ** 0.5 + bias
    return scores.masked_fill(~torch.as_tensor(allowed), float("-inf")).softmax(-1)


class Fused(nn.Module):
    def forward(self, query, key, value, mask=None):
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)


class Written(nn.Module):
    def __init__(self, change=None):
        super().__init__()
        self.change = change

    def forward(self, query, key, value, bias=0.0):
        weights = (query @ key.mT / query.shape[-1] ** 0.5 + bias).softmax(-1)
        if self.change is not None:
            self.change(weights)
        return weights @ value


def three(seed=1):
    query = normal(BATCH, HEADS, Q_LEN, DIM, seed=seed)
    return query, *(normal(BATCH, HEADS, KV_LEN, DIM, seed=seed + i) for i in (1, 2))


# torch.inference_mode


def test_attention_that_is_written_out_in_inference_mode():
    module, (query, key, value) = Written().eval(), three()
    with torch.inference_mode(), regard.capture(module) as seen:
        module(query, key, value)
    close(seen.maps[""][0], softmax(query, key))
    assert seen.notes == []
    assert not seen.maps[""][0].is_inference()


def test_weights_that_are_written_over_in_inference_mode():
    module = Written(lambda weights: weights.mul_(0.5)).eval()
    with torch.inference_mode(), regard.capture(module) as seen:
        module(*three())
    assert seen.maps == {}
    assert "changed in place" in seen.notes[0]


# masks and tensors that are not plain


class Meaning(torch.Tensor):
    """A tensor that torch's functions treat otherwise than as its numbers."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is F.scaled_dot_product_attention:
            return args[2].mean(-2, keepdim=True).expand(*args[0].shape)
        return super().__torch_function__(func, types, args, kwargs or {})


@pytest.mark.parametrize("which", ["mask", "query"])
def test_other_kinds_of_tensors_are_refused_with_a_note(which):
    module, (query, key, value) = Fused(), three()
    mask = torch.zeros(Q_LEN, KV_LEN)
    if which == "mask":
        mask = mask.as_subclass(Meaning)
    else:
        query = query.as_subclass(Meaning)
    with regard.capture(module) as seen:
        module(query, key, value, mask)
    assert seen.maps == {}
    assert f"the {which} is a Meaning, which is no plain tensor" in seen.notes[0]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_refused_with_a_note():
    rows = [normal(HEADS, length, DIM) for length in (3, 5)]
    nested, module = torch.nested.nested_tensor(rows), Fused()
    with regard.capture(module) as seen:
        module(nested, nested, nested)
    assert seen.maps == {}
    assert "the query is a nested tensor" in seen.notes[0]


@pytest.mark.compile
def test_own_operators_compile_whole_inside_a_block():
    attention = AdditiveAttention(DIM, DIM, 7).eval()
    args = normal(BATCH, Q_LEN, DIM), normal(BATCH, KV_LEN, DIM), normal(BATCH, KV_LEN, DIM)
    whole = torch.compile(attention, backend="eager", fullgraph=True)
    plain = whole(*args).context
    with regard.capture(nn.Linear(2, 3)):
        assert torch.equal(whole(*args).context, plain)


# padding on the left

LEFT = torch.tensor([2, 0, 1])


def left_bias(how):
    """A causal mask that hides padding on the left, as libraries add it."""
    rows, columns = torch.arange(Q_LEN)[:, None], torch.arange(Q_LEN)
    allowed = (columns <= rows) & (columns >= LEFT[:, None, None, None])
    if how == "boolean":
        return allowed
    return torch.zeros(allowed.shape).masked_fill(~allowed, torch.finfo(torch.float32).min)


@pytest.mark.parametrize("how", ["eager", "boolean", "added"])
@pytest.mark.parametrize("given", ["tokens", "nothing"])
def test_padding_on_the_left(how, given):
    module = (Written() if how == "eager" else Fused()).eval()
    x = normal(BATCH, HEADS, Q_LEN, DIM)
    tokens = {"tokens": [list("abc"), list("vwxyz"), list("mnop")]}
    options = tokens if given == "tokens" else {}
    with regard.capture(module, **options) as seen:
        module(x, x, x, left_bias(how))
    for row, trace in enumerate(seen.traces):
        (found,) = trace.maps
        assert (found.kind, found.causal) == ("decoder-self", True)
        left = int(LEFT[row])
        real = x[row, :, left:]
        expected = softmax(real, real, torch.ones(Q_LEN - left, Q_LEN - left).tril().bool())
        if given == "nothing":
            assert not found.weights[:, :left].any()
            close(torch.tensor(found.weights[:, left:, left:]), expected)
        else:
            close(torch.tensor(found.weights), expected)
            assert trace.source.labels == tokens["tokens"][row]


# names


class AttentionBlock(nn.Module):
    """Attends in a way that capture does not know."""

    def forward(self, x):
        scores = (x @ x.mT).exp()
        return scores / scores.sum(dim=-1, keepdim=True) @ x


class Mixer(AttentionBlock):
    pass


class Norm(nn.Module):
    def forward(self, x):
        return x / x.norm()


@pytest.mark.parametrize("name", ["attn1", "my_attention_core"])
def test_an_attention_by_the_name_of_its_module_is_noted(name):
    module = nn.ModuleDict({name: Mixer(), "post_attention_rmsnorm": Norm()})
    module["attn_drop"] = nn.Dropout()
    module.forward = lambda x: [part(x) for part in module.values()]
    with regard.capture(module) as seen:
        module(normal(BATCH, Q_LEN, DIM))
    assert [note.split(" ran")[0] for note in seen.notes] == [f"{name} (Mixer)"]


# copies


def test_a_copy_made_inside_the_block_is_not_recorded():
    module, x = nn.MultiheadAttention(DIM, HEADS, batch_first=True).eval(), normal(2, Q_LEN, DIM)
    with regard.capture(module) as seen:
        copy.deepcopy(module)(x, x, x)
        assert seen.maps == {}
        module(x, x, x)
    assert len(seen.maps[""]) == 1


# threads


def in_threads(*works):
    errors = []

    def run(work):
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    assert not errors


def test_blocks_in_two_threads_see_their_own_alone():
    own = {
        "multi-head": MultiHeadAttention(DIM, HEADS).eval(),
        "additive": AdditiveAttention(DIM, DIM, 7).eval(),
    }
    before = {name: getattr(ops, name) for name in ops.__all__}
    barrier, found = threading.Barrier(2, timeout=240), {}
    x = normal(BATCH, Q_LEN, DIM)

    def work(name):
        with torch.no_grad(), regard.capture(own[name]) as seen:
            barrier.wait()
            for _ in range(20):
                own[name](x, x, x)
            barrier.wait()
        found[name] = seen

    in_threads(lambda: work("multi-head"), lambda: work("additive"))
    for name, seen in found.items():
        assert [len(maps) for maps in seen.maps.values()] == [20]
        assert seen.notes == []
        close(seen.maps[""][0], own[name](x, x, x).weights.double())
    assert before == {name: getattr(ops, name) for name in ops.__all__}


def test_what_other_threads_run_is_not_recorded_but_noted():
    module, x = MultiHeadAttention(DIM, HEADS).eval(), normal(BATCH, Q_LEN, DIM)
    with torch.no_grad(), regard.capture(module) as seen:
        in_threads(lambda: module(x, x, x))
    assert seen.maps == {}
    assert "another thread" in seen.notes[0]
