"""Word order in self-attention: unknown by itself, and known with position encodings or a mask.

Question: Does self-attention know the order of tokens, and beyond the lengths of training?

Method: A Transformer encoder of {LAYERS} layers and width {WIDTH}, with six position encodings,
without a mask and with a causal one. First, untrained and in float64: how far outputs of shuffled
and of reversed inputs are from shuffled and reversed outputs. Then trained to name the token two
places before, with the same steps, examples and learning rate, and tested at up to four times the
longest length of training.
"""

from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Final

import torch
from torch import Generator, Tensor

from regard.lab.context import ExperimentContext, MeanInterval, interval, intervals, percent
from regard.lab.experiment import Claim, Data, Plot, ReportTable, column, verdict
from regard.lab.layers import ENCODINGS, PositionedTransformer
from regard.lab.plots import CHANCE, SHARE, draw_lines, legend, new_figure
from regard.lab.small_models import Offsets, TaskBatch, TokenModel, accuracy, seeded, train

WIDTH: Final = 32
LAYERS: Final = 2
#: outputs in float64 that differ by less are equal: their sums were taken in another order
SAME: Final = 1e-9
#: a model knows the order at this accuracy
KNOWS: Final = 0.9
#: and knows something of it if it gains this much over no positions and no mask
MORE: Final = 0.1
TASK: Final = Offsets((2,))
EXAMPLES: Final = 256
NONE: Final = "none"


def build(encoding: str, causal: bool, longest: int) -> TokenModel:
    """Build two layers of a Transformer encoder."""
    body = PositionedTransformer(
        WIDTH, layers=LAYERS, encoding=encoding, causal=causal, longest=longest
    )
    return TokenModel(TASK.vocab, TASK.classes, WIDTH, body)


def permute(
    *, encoding: str, causal: bool, seed: int, length: int, device: torch.device
) -> dict[str, float]:
    """Return the largest difference between permuted outputs and outputs of permuted inputs.

    It is zero if the outputs do not depend on the order of the inputs. `shuffled` is a random
    permutation, `reversed` reads the sequence from its end.
    """
    body = seeded(seed, build, encoding, causal, length).body.double().to(device).eval()
    generator = Generator().manual_seed(seed)
    x = torch.randn(2, length, WIDTH, generator=generator, dtype=torch.float64).to(device)

    @torch.no_grad()
    def difference(order: Tensor) -> float:
        return float((body(x[:, order]) - body(x)[:, order]).abs().max())

    return {
        "shuffled": difference(torch.randperm(length, generator=generator)),
        "reversed": difference(torch.arange(length).flip(0)),
    }


def learn(
    *,
    encoding: str,
    causal: bool,
    seed: int,
    rate: float,
    steps: int,
    batch: int,
    trained_to: int,
    lengths: Sequence[int],
    device: torch.device,
) -> dict[str, list[float]]:
    """Train at lengths up to `trained_to` and return the accuracy at each of `lengths`."""
    model = seeded(seed, build, encoding, causal, max(lengths))

    def draw(generator: Generator) -> TaskBatch:
        shortest = max(TASK.offsets) + 1
        length = int(torch.randint(shortest, trained_to + 1, (1,), generator=generator))
        return TASK.draw(batch, length, generator)

    train(model, draw, steps=steps, lr=rate, seed=seed, device=device)
    tests = [partial(TASK.draw, EXAMPLES, length) for length in lengths]
    return {"accuracy": [accuracy(model, test, seed=seed, device=device) for test in tests]}


def measure(context: ExperimentContext) -> Data:
    """Permute and train every encoding, with and without a causal mask."""
    trained_to = context.choose(16, 32)
    lengths = [trained_to * part // 2 for part in (2, 3, 4, 6, 8)]
    setting = {
        "rate": 0.005, "steps": context.choose(300, 2000), "batch": context.choose(32, 256)
    }  # fmt: skip
    axes = {"encoding": ENCODINGS, "causal": (False, True), "seed": context.seeds}
    label = "{encoding}, causal: {causal}"
    moved = context.grid(label, permute, axes, length=trained_to)
    learned = {"trained_to": trained_to, "lengths": lengths, **setting}
    runs = [
        permuted | trained
        for permuted, trained in zip(
            moved, context.grid(label, learn, axes, **learned), strict=True
        )
    ]
    counts = {
        name: sum(p.numel() for p in build(name, False, lengths[-1]).parameters())
        for name in ENCODINGS
    }
    return {"setting": setting, "lengths": lengths, "runs": runs, "counts": counts}


def judge(data: Data) -> list[Claim]:
    """Judge order without encodings, with them, with a mask alone, and beyond training lengths."""
    return [_blind(data), _distinguished(data), _necessary(data), _longer(data)]


def _blind(data: Data) -> Claim:
    moved = _largest(data, NONE, False, "shuffled")
    right = _share(data, NONE, False)
    blind = moved < SAME and right.mean < KNOWS
    return Claim(
        "document 3, section 3",
        "Self-attention by itself has no sense of order.",
        verdict(blind, blind),
        f"Without positions, shuffling the inputs shuffles the outputs: the largest difference is "
        f"{moved:.1e} in float64. Trained to name the token two places before, its accuracy is "
        f"{right.mean:.0%}, where guessing reaches {1 / TASK.classes:.0%}.",
    )


def _distinguished(data: Data) -> Claim:
    names = _encodings(data)
    apart = [name for name in names if _least(data, name, False, "reversed") > SAME]
    mirrored = [name for name in names if name not in apart]
    smallest = min((_least(data, name, False, "reversed") for name in apart), default=0.0)
    evidence = (
        f"Reading the sequence from its end changes the outputs by at least {smallest:.1e} with "
        f"{_list(apart)}."
        if apart
        else "Reading the sequence from its end changes no output with any of the encodings."
    )
    if mirrored:
        worst = max(_largest(data, name, False, "reversed") for name in mirrored)
        evidence += (
            f" Not so with {_list(mirrored)} (largest difference {worst:.1e}): an encoding of the "
            "absolute distance between two tokens is the same in a mirror, unless there is a "
            "causal mask."
        )
    return Claim(
        "document 3, section 3",
        'Position encodings let a Transformer tell "a b c" from "c b a".',
        verdict(apart, not mirrored),
        evidence,
    )


def _necessary(data: Data) -> Claim:
    moved = _least(data, NONE, True, "shuffled")
    masked, bare = _share(data, NONE, True), _share(data, NONE, False)
    best = max((_share(data, name, True).mean, name) for name in _encodings(data))
    some_order = moved > SAME and masked.mean > bare.mean + MORE
    return Claim(
        "document 3, section 4",
        "Position encodings are indispensable: without them order is lost.",
        verdict(masked.mean < KNOWS, not some_order),
        f"A causal mask alone introduces order: without positions, shuffling then changes outputs "
        f"by at least {moved:.1e}, and the accuracy is {masked.mean:.0%} instead of "
        f"{bare.mean:.0%} without the mask; {best[1]} positions under the same mask reach "
        f"{best[0]:.0%}. The document leaves out the mask, which every decoder has.",
    )


def _longer(data: Data) -> Claim:
    first, last = data["lengths"][0], data["lengths"][-1]
    near, far = (_share(data, "sinusoidal", False, place) for place in (0, -1))
    solved = [name for name in _encodings(data) if _share(data, name, False).mean >= KNOWS]
    reach = [name for name in solved if _share(data, name, False, -1).mean >= KNOWS]
    return Claim(
        "document 3, section 3",
        "Sines and cosines let a model sense the relative or absolute order of tokens.",
        verdict(near.mean >= KNOWS, far.mean >= KNOWS),
        f"The accuracy of sinusoidal positions is {near.mean:.0%} at {first} tokens, the longest "
        f"of training, and {far.mean:.0%} at {last}. Without a mask, {_list(solved)} learn the "
        f"task, and of these {_list(reach)} still solve it at {last} tokens.",
    )


def _list(names: Sequence[str]) -> str:
    if len(names) < 2:
        return "".join(names) or "none"
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _encodings(data: Data) -> list[str]:
    return [name for name in data["counts"] if name != NONE]


def _largest(data: Data, name: str, causal: bool, how: str) -> float:
    return float(max(column(data["runs"], how, encoding=name, causal=causal)))


def _least(data: Data, name: str, causal: bool, how: str) -> float:
    return float(min(column(data["runs"], how, encoding=name, causal=causal)))


def _share(data: Data, name: str, causal: bool, place: int = 0) -> MeanInterval:
    """Return the accuracy at one of the lengths, by default the longest of training."""
    runs = column(data["runs"], "accuracy", encoding=name, causal=causal)
    return interval([run[place] for run in runs])


def draw(data: Data) -> list[Plot]:
    """Draw the accuracy over the length, without a mask and with a causal one."""
    figure, axes = new_figure(columns=2)
    lengths = data["lengths"]
    for panel, causal in zip(axes, (False, True), strict=True):
        lines = {
            name: intervals(column(data["runs"], "accuracy", encoding=name, causal=causal))
            for name in data["counts"]
        }
        title = "causal mask" if causal else "no mask"
        draw_lines(panel, lengths, lines, bounds=SHARE, title=title, ylim=(0, 1.03))
        panel.axhline(1 / TASK.classes, **CHANCE)
        panel.set_xticks(lengths, [str(length) for length in lengths])
        panel.set_xlabel("length [tokens]")
    axes[0].set_ylabel("accuracy")
    legend(axes[1])
    caption = (
        f"Accuracy in naming the token two places before, of models that were trained on up to "
        f"{lengths[0]} tokens, with 95% intervals over seeds; the dotted line is chance."
    )
    return [Plot("order", caption, figure)]


def tabulate(data: Data) -> list[ReportTable]:
    """Tabulate the effect of permutations and the accuracy at both ends of the lengths."""
    first, last = data["lengths"][0], data["lengths"][-1]
    rows = [
        [
            name, "causal" if causal else "none", f"{data['counts'][name]:,}",
            *(f"{_largest(data, name, causal, how):.1e}" for how in ("shuffled", "reversed")),
            *(percent(_share(data, name, causal, place)) for place in (0, -1)),
        ]
        for name, causal in product(data["counts"], (False, True))
    ]  # fmt: skip
    setting = data["setting"]
    caption = (
        f"{LAYERS} layers of width {WIDTH}, {setting['steps']} steps of {setting['batch']} "
        f"sequences, learning rate {setting['rate']:g}. Learned positions have a row for each of "
        f"{last} positions, of which training sees {first}."
    )
    columns = [
        "positions", "mask", "parameters", "changed by shuffling", "changed by reversing",
        f"accuracy at {first}", f"accuracy at {last}",
    ]  # fmt: skip
    return [ReportTable(caption, columns, rows)]
