"""States as the graphs carry them, for every preset that can be exported."""

import pytest
import torch

from models.cases import SRC_VOCAB, VARIANTS, build
from regard.export.graphs import LARGE, SMALL, TracedExample, compare, flatten, unflatten
from regard.export.traceable import LoopedRNN, exportable, first_state
from regard.tasks.inputs.graph_inputs import TokenInputs

EXPORTED = [name for name in VARIANTS if not name.startswith("lm-")]
LOOPED = [name for name in EXPORTED if name.startswith("self-attentive")]
TOKENS = TokenInputs(SRC_VOCAB)
LENGTHS = torch.tensor([5, 2, 1])


@pytest.mark.sample(8)
@pytest.mark.parametrize("variant", EXPORTED)
def test_steps_from_the_first_state_of_the_graphs_are_those_of_the_model(variant):
    model = build(variant).eval()
    src = torch.randint(4, SRC_VOCAB, (3, 5))
    ours, theirs = (
        model.start(model.encode(src, LENGTHS)),
        first_state(model, model.encode(src, LENGTHS)),
    )
    for tokens in ([1, 1, 1], [5, 4, 2], [2, 6, 4], [4, 4, 5]):
        newest = torch.tensor(tokens)
        theirs = unflatten(theirs, flatten(theirs, 3))
        expected, found = model.step(newest, ours), model.step(newest, theirs)
        torch.testing.assert_close(found.logits, expected.logits)
        ours, theirs = expected.state, found.state


@pytest.mark.sample(8)
@pytest.mark.parametrize("variant", EXPORTED)
def test_every_axis_that_changes_has_a_name(variant):
    own = build(variant).eval()
    small, large = (TracedExample.of(own, sizes, TOKENS) for sizes in (SMALL, LARGE))
    ports = compare(small, large)
    for port in (*ports.memory, *ports.state, *ports.attention):
        assert port.shape[0] == "batch"
    assert "steps" not in {size for port in ports.memory for size in port.shape}
    assert all(port.shape[2:] == ["source"] for port in ports.attention)
    assert [port.name for port in ports.first] == [port.name for port in ports.state]


@pytest.mark.slow
@pytest.mark.plain
@pytest.mark.sample(1)
@pytest.mark.parametrize("variant", LOOPED)
def test_loops_in_the_graph_read_as_the_layers_do(variant):
    model = build(variant).eval()
    traced = exportable(model)
    loops = [part for part in traced.modules() if isinstance(part, LoopedRNN)]
    assert len(loops) == (4 if "both" in variant else 2)
    src = torch.randint(4, SRC_VOCAB, (3, 5))
    with torch.no_grad():
        expected, found = model.encode(src, LENGTHS), traced.encode(src, LENGTHS)
    torch.testing.assert_close(found.output, expected.output)
    torch.testing.assert_close(found.summary, expected.summary)
