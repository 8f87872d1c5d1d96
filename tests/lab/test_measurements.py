"""The functions that measure: what they return for models and tasks that are known on paper."""

import inspect
import math
import pickle
from functools import partial

import pytest
import torch
from torch import Generator

from regard.lab import EXPERIMENTS, ExperimentContext, layers
from regard.lab.experiments import bottleneck, heads, order, path, reading, recall, scale, vision
from regard.lab.experiments import path as gradients
from regard.lab.experiments import word_by_word as words
from regard.lab.layers import LSTM, RNN
from regard.lab.runner import find
from regard.lab.small_models import Copy, count_parameters, match_width, seeded

CPU = torch.device("cpu")
#: what each measured function returns, as far as the plan of an experiment reads it
ANSWERS = {
    "gradient_sizes": [1.0] * 7, "count_path": 3, "count_sizes": [], "time_sizes": [],
}  # fmt: skip


class Planned(ExperimentContext):
    """Checks each piece of a plan, and does none."""

    def call(self, label, compute, **arguments):
        pickle.dumps(arguments)
        inspect.signature(compute).bind(**arguments, device=self.device)
        return ANSWERS.get(compute.__name__, {"set": "", "validation": arguments.get("rate")})


@pytest.mark.sample(8)
@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_piece_of_a_plan_can_be_computed(name, quick):
    data = find(name).measure(Planned(CPU, quick=quick, seeds=(3, 4)))
    if isinstance(data.get("runs"), list):
        assert {row["seed"] for row in data["runs"]} == {3, 4}


@pytest.mark.parametrize("name", ["path", "cost", "recall"])
def test_a_readers_family_is_measured_beside_the_others(name):
    module = {"path": path, "recall": recall, "cost": find("cost")}[name]
    mine = layers.Family("mine", layers.self_attention)
    data = module.measure(Planned(CPU, seeds=(0,)), families=(mine,)) if name != "cost" else (
        inspect.getmodule(module.measure).measure(Planned(CPU), families=(mine,))
    )  # fmt: skip
    assert "mine" in data.get("counts", data.get("paths", data.get("families")))


def test_the_best_rate_of_the_first_seed_is_used_for_all():
    data = recall.measure(Planned(CPU, seeds=(3, 4)), [RNN])
    assert [(run["rate"], run["seed"]) for run in data["runs"]] == [(0.01, 3), (0.01, 4)]


# ---- scale: softmax and its Jacobian


def test_scores_spread_as_the_root_of_the_width_or_not_at_all():
    found = {
        scaled: scale.softmax_statistics(seed=0, width=100, scaled=scaled, queries=1600, device=CPU)
        for scaled in (True, False)
    }
    assert found[True]["deviation"] == pytest.approx(1, rel=0.03)
    assert found[False]["deviation"] == pytest.approx(10, rel=0.03)
    assert found[False]["entropy"] < 1 < found[True]["entropy"] < math.log(scale.KEYS)
    assert found[True]["gone"] == 0 < found[False]["gone"]


# ---- order and heads


def moved(encoding, *, causal):
    return order.permute(encoding=encoding, causal=causal, seed=1, length=7, device=CPU)


def test_shuffling_inputs_shuffles_outputs_only_without_positions_and_mask():
    assert max(moved("none", causal=False).values()) < order.SAME
    assert min(moved("none", causal=True).values()) > order.SAME
    for name in ("sinusoidal", "learned", "rotary", "relative"):
        assert min(moved(name, causal=False).values()) > order.SAME
    mirror = moved("ALiBi", causal=False)  # knows distances but no direction
    assert mirror["reversed"] < order.SAME < mirror["shuffled"]


def test_presets_have_equal_counts_of_parameters():
    target = count_parameters(words.build, "bahdanau", words.VOCAB, 16)
    for preset in words.MODELS:
        build = partial(words.build, preset, words.VOCAB)
        width, count = match_width(build, target)
        assert sum(p.numel() for p in build(width).parameters()) == count
        assert abs(count - target) <= 0.05 * target


@pytest.mark.parametrize(
    ("learn", "settings", "keys"),
    [
        (order.learn, {"encoding": "learned", "causal": False, "lengths": [5, 11]},
         {"accuracy"}),
        (heads.learn, {"heads": 2, "encoding": "rotary", "looks": "four looks"}, {"accuracy"}),
        (words.learn, {"preset": "rnn", "order": "running sum", "widths": {"rnn": 3}},
         {"sentences"}),
        (recall.learn, {"family": RNN, "size": 2, "width": 8,
                        "distances": [0, 5], "farther": [11]},
         {"accuracy", "validation", "before", "after"}),
    ],
)  # fmt: skip
def test_a_short_run_gives_a_row(learn, settings, keys, monkeypatch):
    monkeypatch.setattr(words, "EXAMPLES", 8)
    row = learn(**settings, rate=0.01, seed=1, steps=2, batch=3, device=CPU)
    assert row.keys() == keys
    first = torch.tensor(next(iter(row.values())))
    assert ((first >= 0) & (first <= 1)).all()
    if learn is recall.learn:
        assert [len(row[key]) for key in ("accuracy", "before", "after")] == [3, 2, 2]
        assert row["before"][1] < row["before"][0]


# ---- path: gradients over distance


def sizes(family, distances, **changes):
    told = {"seed": 0, "width": 6, "length": 9} | changes
    return path.gradient_sizes(family=family, distances=distances, device=CPU, **told)


def test_gradients_of_an_rnn_shrink_with_its_radius():
    small, large = (sizes(RNN, [1, 8], radius=radius) for radius in (0.1, 1.0))
    # each of seven more steps brings at most the matrix, which is ten times smaller
    assert small[1] / small[0] == pytest.approx(large[1] / large[0] * 1e-7, rel=10)


def test_the_radius_is_what_it_says_and_the_open_gate_is_the_forget_gate():
    layer = seeded(0, layers.build, RNN, 6)
    gradients._set_radius(layer, 3.0)
    weight = layer.layer.ahead[0].weight_hh_l0
    assert torch.linalg.eigvals(weight).abs().max().item() == pytest.approx(3.0, rel=1e-5)
    layer = seeded(0, layers.build, LSTM, 6)
    before = layer.layer.ahead[0].bias_ih_l0.detach().clone()
    gradients._open_forget_gate(layer, 2.0)
    change = layer.layer.ahead[0].bias_ih_l0.detach() - before
    torch.testing.assert_close(change, torch.tensor([0.0] * 6 + [2.0] * 6 + [0.0] * 12))


@pytest.mark.parametrize("family", recall.FAMILIES, ids=lambda family: family.name)
def test_no_family_of_recall_sees_the_future(family):
    task = Copy(2)
    learner = seeded(1, recall.build, family, task, 12).eval()
    tokens = torch.randint(task.vocab, (3, 11), generator=torch.Generator().manual_seed(2))
    changed = tokens.clone()
    changed[:, 7:] = (tokens[:, 7:] + 1) % task.vocab
    before, after = learner(tokens), learner(changed)
    torch.testing.assert_close(before[:, :7], after[:, :7])
    assert not torch.allclose(before[:, 7:], after[:, 7:])


# ---- sentences: word by word, the bottleneck, reading


@pytest.mark.parametrize(("short", "sentences"), [(False, 1.0), (True, 0.0)])
def test_right_sentences_are_counted(monkeypatch, short, sentences):
    def answers(model, pairs, batch, device):
        return [target[: -1 if short else None] for _, target in pairs]

    monkeypatch.setattr(words, "translate", answers)
    budget = {"steps": 1, "batch": 2, "rate": 0.01}
    told = {"preset": "rnn", "order": "last word second", "widths": {"rnn": 3}, "seed": 1}
    assert words.learn(**told, **budget, device=CPU) == {"sentences": sentences}


@pytest.mark.slow
@pytest.mark.parametrize("preset", [bottleneck.FIXED, bottleneck.SELF])
def test_one_model_is_trained_at_equal_size_and_judged_by_length(preset):
    found = bottleneck.learn(
        name=preset, seed=0, data=None, embed=8, hidden=48, dropout=0.0,
        parts=5, batch=6, steps=2, rate=1e-3, tests=20, device=CPU,
    )  # fmt: skip
    assert len(found["points"]) == 5
    vocab = bottleneck.load(None).vocab
    additive = count_parameters(partial(bottleneck.build, embed=8), "bahdanau", vocab, 24)
    assert found["parameters"] == pytest.approx(additive, rel=0.05)


def test_a_batch_is_of_neighbours_and_of_all_sentences_where_they_are_few():
    sentences = [[4] * n for n in range(1, 8)]
    batch = reading.draw_batch(sentences, 3, Generator().manual_seed(0))
    lengths = (batch.inputs[0] != 0).sum(dim=1).tolist()
    assert lengths == list(range(lengths[0], lengths[0] + 3))
    assert len(reading.draw_batch(sentences, 100, Generator()).targets) == 7


def test_a_model_that_knows_nothing_needs_the_nats_of_an_even_guess():
    model = reading.build(reading.RNN, 11, 4, 0.0, 5)
    with torch.no_grad():
        for parameter in model.output.parameters():
            parameter.zero_()
    found = reading.nats(model, [[4] * n for n in range(3, 40)], 7, CPU)
    assert found == pytest.approx(math.log(11), rel=1e-5)


@pytest.mark.slow
def test_a_language_model_is_trained_and_looked_into():
    found = reading.learn(
        name=reading.SELF_LSTM, seed=0, data=None, words=150, embed=8, hidden=12, dropout=0.0,
        batch=9, steps=2, rate=1e-3, tests=60, device=CPU,
    )  # fmt: skip
    seen = reading.CHOICES[reading.SELF_LSTM]
    assert sum(found["lecture"][reading.VERB][:seen]) == pytest.approx(1, abs=1e-3)
    assert found["frames"] > 0


# ---- vision


def test_even_mixing_is_as_large_as_attention_and_looks_nowhere():
    counts = [
        sum(p.numel() for p in vision.build(name, 16, 49, 48, 2).parameters())
        for name in (vision.ATTENTION, vision.EVEN)
    ]
    assert abs(counts[0] - counts[1]) < 0.01 * counts[0]
    mixing, x = vision.EvenMixing(5), torch.randn(2, 3, 5)
    mixed, weights = mixing(x, x, x, None, bias=None, need_weights=True)
    assert weights is None
    torch.testing.assert_close(mixed[:, 1], mixing.output(mixing.value(x.mean(dim=1))))


@pytest.mark.parametrize("name", vision.MODELS)
def test_one_model_of_images_is_trained_and_judged(name):
    steps = 60 if name == vision.LINEAR else 2
    found = vision.learn(
        name=name, seed=0, data=None, images=1200, steps=steps, dim=8, layers=1, device=CPU
    )
    if name == vision.LINEAR:
        assert found["accuracy"] > 0.7
    elif name == vision.ATTENTION:
        assert len(found["maps"]) == vision.DRAWN
        assert sum(found["maps"][0]) == pytest.approx(1, abs=1e-3)
        assert 0 < found["on_ink"] < 1
