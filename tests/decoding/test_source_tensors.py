"""Tensors of the source, which beams of one source share, are declared and not copied."""

import pytest
import torch

from models.cases import BATCH, VARIANTS, build, pairs
from regard.decoding.beam_state import follow
from regard.state import map_leaves

# what a model without attention always mixes in: its summary, but the field is that of a context
UNDECLARED = {"seq2seq": {"context"}, "seq2seq-gru": {"context"}}


def tensors(state):
    """Of each tensor its name, the tensor, and whether it is declared to be of the source."""
    found = {}

    def collect(name, leaf, of_source):
        if isinstance(leaf, torch.Tensor):
            found[name] = (leaf, of_source)
        return leaf

    map_leaves(state, collect)
    return found


def stepped(model):
    src, lengths, tgt = pairs()
    with torch.no_grad():
        before = model.step(tgt[:, 0], model.start(model.encode(src, lengths))).state
        return before, model.step(tgt[:, 1] % 13, before).state


@pytest.mark.sample(8)
@pytest.mark.parametrize("variant", VARIANTS)
def test_declared_are_those_that_a_step_returns_as_it_got_them(variant):
    before, after = map(tensors, stepped(build(variant).eval()))
    same = {name for name, (tensor, _) in after.items() if before[name][0] is tensor}
    declared = {name for name, (_, of_source) in after.items() if of_source}
    assert same - UNDECLARED.get(variant, set()) == declared


@pytest.mark.parametrize("variant", ["bahdanau", "pointer", "transformer", "conv", "monotonic"])
def test_all_tensors_follow_their_beams_and_those_of_the_source_stay(variant):
    _, one = stepped(build(variant).eval())
    rows = torch.arange(BATCH)[:, None]
    # one beam each has become two
    state = follow(one, rows.repeat(1, 2), same_rows=False)
    for name, (tensor, _) in tensors(state).items():
        assert tensor.equal(tensors(one)[name][0].repeat_interleave(2, dim=0)), name
    # make beams differ, as the next step would
    state = map_leaves(
        state,
        lambda name, leaf, of_source: (
            leaf if of_source or not isinstance(leaf, torch.Tensor) else leaf.roll(1, 0)
        ),
    )
    parents = torch.stack([2 * rows[:, 0] + 1, 2 * rows[:, 0]], dim=1)
    after = follow(state, parents, same_rows=True)
    for name, (tensor, of_source) in tensors(after).items():
        before = tensors(state)[name][0]
        assert tensor is before if of_source else tensor.equal(before[parents.flatten()]), name
    # a row leaves
    rest = follow(after, torch.tensor([[3, 2], [5, 5]]), same_rows=False)
    for name, (tensor, _) in tensors(rest).items():
        assert tensor.equal(tensors(after)[name][0][[3, 2, 5, 5]]), name
