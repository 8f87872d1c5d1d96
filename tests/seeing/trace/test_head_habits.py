"""Planted heads are found: each has its one habit, at all of its attention."""

from contextlib import suppress

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import regard
from regard.errors import ArgumentError
from regard.seeing import Map, Text, Token, Trace
from regard.seeing.attribution.interventions import heads_off, module_switches
from regard.seeing.page.compare_page import HeadRow, render_heads
from regard.seeing.trace.head_habits import Habit, HeadHabits, head_habits
from seeing.planted import PlantedCross, encoder_model, induction_model, labels, repeated
from seeing.tools import HOSTILE, of_labels


def seen_by(model, ids):
    with regard.capture(model, tokens=labels(ids)) as seen, torch.no_grad():
        model(ids)
    return seen.traces


@pytest.fixture(scope="module")
def found():
    return {one.key: one for one in head_habits(seen_by(induction_model(), repeated(11)))}


@pytest.mark.parametrize(
    ("layer", "head", "habit"),
    [
        (0, 0, "previous"),
        (0, 1, "first"),
        (0, 2, "same"),
        (0, 3, "separator"),
        (1, 0, "induction"),
        (1, 1, "position"),
        (1, 2, None),
        (1, 3, "same"),
    ],
)
def test_each_planted_head_is_found(found, layer, head, habit):
    one = found["decoder-self", layer, head]
    assert one.main == habit
    if habit is not None:
        assert one.habits[habit].share == pytest.approx(1.0, abs=1e-4)
        assert one.habits[habit].score == pytest.approx(1.0, abs=1e-4)
    if habit == "position":
        assert one.habits[habit].detail == 3


def test_heads_that_see_both_sides():
    found = head_habits(seen_by(encoder_model(), repeated(5)))
    assert [(one.kind, one.main) for one in found] == [
        ("encoder-self", habit) for habit in ("next", "previous", "first", "separator")
    ]
    assert found[0].habits["next"].share == pytest.approx(1.0, abs=1e-4)
    assert found[0].habits["induction"].share < 0.1  # a token is no earlier copy of itself


def test_heads_of_cross_attention():
    src, tgt = torch.tensor([[2, 3, 4, 5, 6, 2, 3]]), torch.tensor([[4, 3, 6, 5, 2]])
    model = PlantedCross().eval()
    with regard.capture(model) as seen, torch.no_grad():
        model(src, tgt)
    seen.label(labels(src), labels(tgt))
    found = head_habits(seen.traces)
    assert [(one.kind, one.main) for one in found] == [
        ("cross", habit) for habit in ("diagonal", None, "first", "same")
    ]
    assert found[0].habits["diagonal"].share == pytest.approx(1.0, abs=1e-4)
    # the middle of the turned diagonal is on the diagonal
    assert found[1].habits["diagonal"].share == pytest.approx(1 / 5, abs=1e-4)
    assert not {"previous", "next", "induction"} & found[0].habits.keys()


def test_shares_by_hand():
    """Two rows of a causal map after `<s>`: labels `x`, `x`; specials do not start the diagonal."""
    source = Text("x x", (Token("<s>", special=True), Token("▁x"), Token("x")))
    weights = np.array([[[1.0, 0, 0], [0.75, 0.25, 0], [0.125, 0.375, 0.5]]], dtype=np.float32)
    maps = (Map("decoder-self", 0, weights, None, "source", "source", True),)
    (one,) = head_habits([Trace(source, source, maps)])
    share = {name: habit.share for name, habit in one.habits.items()}
    assert share["previous"] == pytest.approx((0.75 + 0.375) / 2)
    assert share["first"] == pytest.approx((0.75 + 0.125) / 2)
    assert share["same"] == pytest.approx((0.25 + 0.875) / 2)
    assert share["induction"] == pytest.approx(0.5)
    assert one.habits["first"].chance == pytest.approx((1 / 2 + 1 / 3) / 2)
    assert one.habits["induction"].rows == 1
    assert "separator" not in share


def switches_of(model):
    with regard.capture(model) as seen, torch.no_grad():
        model(repeated(1))
    return module_switches(model, seen.modules())


def test_a_head_is_off_inside_the_block_alone():
    model, ids = induction_model(), repeated(3)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    one, other = (switches_of(model)["decoder-self", i, 0] for i in range(2))
    with torch.no_grad():
        whole = model(ids)
        with heads_off(one, other):
            assert not model(ids).any()
        assert torch.equal(model(ids), whole)
        with suppress(KeyError), heads_off(one, other):
            raise KeyError
        assert torch.equal(model(ids), whole)
    assert all(torch.equal(model.state_dict()[name], weight) for name, weight in before.items())


class Conv1D(nn.Module):
    """A linear map whose weights are (inputs, outputs), as transformers has them."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs))

    def forward(self, x):
        return torch.addmm(self.weight.new_zeros(11), x.view(-1, 6), self.weight).view(
            *x.shape[:-1], -1
        )


class Beside(nn.Module):
    """Attention whose heads a linear map of any name reads beside it, with a gate between."""

    def __init__(self, last):
        super().__init__()
        self.attention, self.wO = nn.Identity(), last

    def forward(self, x):
        x = self.attention(x).unflatten(-1, (3, 2)).transpose(1, 2)
        context = F.scaled_dot_product_attention(x, x, x).transpose(1, 2).flatten(2)
        return self.wO(context * torch.sigmoid(context))


@pytest.mark.parametrize("last", [nn.Linear(6, 11), Conv1D(6, 11)])
def test_the_output_projection_is_what_reads_the_heads(last):
    model, x = Beside(last), torch.randn(2, 5, 6)
    with regard.capture(model) as seen, torch.no_grad():
        model(x)
    switch = module_switches(model, seen.modules())["encoder-self", 0, 1]
    assert switch == (last, 2, 4)
    other = x.clone()
    other[..., 2:4] = torch.randn(2, 5, 2)
    with heads_off(switch):
        assert torch.allclose(model(x), model(other))
    assert not torch.allclose(model(x), model(other))


def test_heads_without_an_output_projection_cannot_be_switched_off():
    model = Beside(nn.Identity())
    with regard.capture(model) as seen, torch.no_grad():
        model(torch.randn(2, 5, 6))
    with pytest.raises(ArgumentError, match="read side by side by one linear module"):
        module_switches(model, seen.modules())


def rows_of(traces):
    return [HeadRow(one, (0.5, 0.25, 0.75), 0.125, 1) for one in head_habits(traces)]


def test_a_page_is_safe_and_bounded(monkeypatch):
    hostile = of_labels(list(HOSTILE), list(HOSTILE), heads=3)
    page = render_heads(HOSTILE[0], {HOSTILE[1]: HOSTILE[0]}, rows_of([hostile]), [hostile])
    assert page.count("</script>") == 1
    assert "<b>" not in page
    assert page.count('class="head"') == page.count("<svg xmlns") == 3
    assert "alignment error rate 12.5 with shift +1" in page
    assert "script-src 'sha256-" in page
    monkeypatch.setattr("regard.seeing.page.compare_page.MOST_DRAWN", 5)
    monkeypatch.setattr("regard.seeing.page.compare_page.MOST_FIGURES", 10)
    many = of_labels("abc", "xyz", heads=7)
    page = render_heads("many", {}, rows_of([many]), [many, many, many])
    assert "2 more heads have no figures here" in page
    assert page.count("<svg xmlns") == 10


FAMILIES = {
    "gpt2": ("GPT2LMHeadModel", {"n_embd": 12, "n_layer": 2, "n_head": 3, "n_positions": 16}),
    "llama": (
        "LlamaForCausalLM",
        {"num_hidden_layers": 2, "num_attention_heads": 3, "num_key_value_heads": 1},
    ),
    "t5": ("T5ForConditionalGeneration", {"num_layers": 2, "num_heads": 3, "d_kv": 5, "d_ff": 19}),
}


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_heads_of_transformers_are_found_and_switched_off(family):
    """With all heads of a kind off, no input reaches an output through that attention."""
    transformers = pytest.importorskip("transformers")
    name, sizes = FAMILIES[family]
    cls = getattr(transformers, name)
    width = {"hidden_size": 12, "d_model": 12, "intermediate_size": 19}
    config = cls.config_class(vocab_size=23, pad_token_id=0, **{**width, **sizes})
    torch.manual_seed(0)
    model = cls(config).eval()
    ids = torch.tensor([[5, 7, 11, 13, 17]])
    inputs = {"input_ids": ids, "use_cache": False}
    if config.is_encoder_decoder:
        inputs["decoder_input_ids"] = torch.tensor([[2, 3, 19]])
    with regard.capture(model) as seen, torch.no_grad():
        whole = model(**inputs).logits
    (trace,) = seen.traces
    switches = module_switches(model, seen.modules())
    assert {key[:2] for key in switches} == {(m.kind, m.layer) for m in trace.maps}
    assert {one.key for one in head_habits([trace])} == switches.keys()
    assert all(switch.end - switch.start in (4, 5) for switch in switches.values())
    kind = "cross" if config.is_encoder_decoder else trace.kinds[0]
    own = [switch for key, switch in switches.items() if key[0] == kind]
    with torch.no_grad(), heads_off(*own):
        off = model(**inputs).logits
        # neither the source nor an earlier token can be seen
        other = {**inputs, "input_ids": torch.tensor([[6, 8, 12, 13, 17]])}
        assert torch.allclose(off[:, -1], model(**other).logits[:, -1], atol=1e-6)
    with torch.no_grad():
        assert torch.equal(model(**inputs).logits, whole)
        assert not torch.allclose(whole[:, -1], model(**other).logits[:, -1], atol=1e-6)


def test_evidence_by_hand():
    # Wilson's lower end of 9 of 10 is 0.596, and 0.438 of 3 of 3
    assert Habit(0.9, 0.2, 10).evidence == pytest.approx((0.596 - 0.2) / 0.8, abs=1e-3)
    assert Habit(1.0, 0.5, 3).evidence == pytest.approx((0.438 - 0.5) / 0.5, abs=1e-3)
    assert HeadHabits("cross", 0, 0, {"same": Habit(1.0, 0.5, 3)}).main is None
