"""Word order in self-attention: unknown by itself, and known with position encodings or a mask.

Question: Does self-attention know the order of tokens, and beyond the lengths of training?

Method: A Transformer encoder of {LAYERS} layers and width {WIDTH}, with six position encodings,
without a mask and with a causal one. First, untrained and in float64: how far outputs of shuffled
and of reversed inputs are from shuffled and reversed outputs. Then trained to name the token two
places before, with the same steps, examples and learning rate, and tested at up to four times the
longest length of training.
"""

from typing import Any, Final

import torch
from torch import Generator, Tensor

from regard.lab.context import ExperimentContext
from regard.lab.estimates import MeanInterval, at, column, grouped_table, listed, means
from regard.lab.experiment import Claim, Data, Plot, ReportTable, verdict
from regard.lab.layers import ENCODINGS, transformer
from regard.lab.plots import SHARE, curves
from regard.lab.small_models import Offsets, TokenModel, accuracy, seeded, train_on_sizes

WIDTH: Final = 32
LAYERS: Final = 2
#: outputs in float64 that differ by less are equal: their sums were taken in another order
SAME: Final = 1e-9
#: a model knows the order at this accuracy
KNOWS: Final = 0.9
#: and knows something of it if it gains this much over no positions and no mask
MORE: Final = 0.1
TASK: Final = Offsets((2,))
NONE: Final = "none"
MASKS: Final[dict[bool, str]] = {False: "no mask", True: "causal mask"}


def build(encoding: str, causal: bool, longest: int) -> TokenModel:
    """Build two layers of a Transformer encoder."""
    body = transformer(WIDTH, layers=LAYERS, encoding=encoding, causal=causal, longest=longest)
    return TokenModel(TASK.vocab, TASK.vocab, WIDTH, body)


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
    lengths: list[int],
    device: torch.device,
    **budget: Any,
) -> dict[str, list[float]]:
    """Train at lengths up to the first of `lengths` and return the accuracy at each of them."""
    model = seeded(seed, build, encoding, causal, max(lengths))
    sizes = range(max(TASK.offsets) + 1, lengths[0] + 1)
    train_on_sizes(model, TASK, sizes, seed=seed, device=device, **budget)
    return {"accuracy": [accuracy(model, TASK, n, seed=seed, device=device) for n in lengths]}


def measure(context: ExperimentContext) -> Data:
    """Permute and train every encoding, with and without a causal mask."""
    lengths = [context.choose(16, 32) * part // 2 for part in (2, 3, 4, 6, 8)]
    setting = context.budget((300, 32, 0.005), (2000, 256, 0.005))
    axes: dict[str, Any] = {"encoding": ENCODINGS, "causal": MASKS, "seed": context.seeds}
    moved = context.grid("{encoding}, causal: {causal}", permute, axes, length=lengths[0])
    runs = context.grid("{encoding}, causal: {causal}", learn, axes, lengths=lengths, **setting)
    counts = {
        name: sum(p.numel() for p in build(name, False, lengths[-1]).parameters())
        for name in ENCODINGS
    }
    rows = [before | after for before, after in zip(moved, runs, strict=True)]
    return {"setting": setting, "lengths": lengths, "runs": rows, "counts": counts}


def judge(data: Data) -> list[Claim]:
    """Judge order without encodings, with them, with a mask alone, and beyond training lengths."""
    first, last = data["lengths"][0], data["lengths"][-1]
    names = [name for name in data["counts"] if name != NONE]

    def moved(name: str, how: str, *, causal: bool = False) -> list[float]:
        return column(data["runs"], how, encoding=name, causal=causal)

    def share(name: str, *, causal: bool = False, place: int = 0) -> float:
        return accuracies(data, name, causal)[place].mean

    largest, bare, masked = max(moved(NONE, "shuffled")), share(NONE), share(NONE, causal=True)
    blind = largest < SAME and bare < KNOWS
    apart = [name for name in names if min(moved(name, "reversed")) > SAME]
    mirrored = [name for name in names if name not in apart]
    change = min((min(moved(name, "reversed")) for name in apart), default=0.0)
    kept = max((max(moved(name, "reversed")) for name in mirrored), default=0.0)
    some_order = min(moved(NONE, "shuffled", causal=True)) > SAME and masked > bare + MORE
    best, encoding = max((share(name, causal=True), name) for name in names)
    near, far = (share("sinusoidal", place=place) for place in (0, -1))
    solved = [name for name in names if share(name) >= KNOWS]
    reach = [name for name in solved if share(name, place=-1) >= KNOWS]
    return [
        Claim(
            "document 3, section 3",
            "Self-attention by itself has no sense of order.",
            verdict(blind, blind),
            f"Without positions, shuffling the inputs shuffles the outputs: the largest difference "
            f"is {largest:.1e} in float64. Trained to name the token two places before, its "
            f"accuracy is {bare:.0%}, where guessing reaches {1 / TASK.vocab:.0%}.",
        ),
        Claim(
            "document 3, section 3",
            'Position encodings let a Transformer tell "a b c" from "c b a".',
            verdict(apart, not mirrored),
            f"Reading the sequence from its end changes the outputs by at least {change:.1e} with "
            f"{listed(apart)}, and by at most {kept:.1e} with {listed(mirrored)}: an encoding of "
            "the absolute distance between two tokens is the same in a mirror, unless there is a "
            "causal mask.",
        ),
        Claim(
            "document 3, section 4",
            "Position encodings are indispensable: without them order is lost.",
            verdict(masked < KNOWS, not some_order),
            f"A causal mask alone introduces order: without positions, the accuracy is {masked:.0%}"
            f" instead of {bare:.0%} without the mask; {encoding} positions under the same mask "
            f"reach {best:.0%}. The document leaves out the mask, which every decoder has.",
        ),
        Claim(
            "document 3, section 3",
            "Sines and cosines let a model sense the relative or absolute order of tokens.",
            verdict(near >= KNOWS, far >= KNOWS),
            f"The accuracy of sinusoidal positions is {near:.0%} at {first} tokens, the longest "
            f"of training, and {far:.0%} at {last}. Without a mask, {listed(solved)} learn the "
            f"task, and of these {listed(reach)} still solve it at {last} tokens.",
        ),
    ]


def accuracies(data: Data, name: str, causal: bool) -> list[MeanInterval]:
    """Return the accuracy at each length."""
    return means(data["runs"], "accuracy", encoding=name, causal=causal)


def draw(data: Data) -> list[Plot]:
    """Draw the accuracy over the length, without a mask and with a causal one."""
    panels = {
        title: {name: accuracies(data, name, causal) for name in data["counts"]}
        for causal, title in MASKS.items()
    }
    lengths = data["lengths"]
    caption = (
        f"Accuracy in naming the token two places before, of models that were trained on up to "
        f"{lengths[0]} tokens, with 95% intervals over seeds; the dotted line is chance."
    )
    axes: dict[str, Any] = {"xlabel": "length [tokens]", "ylabel": "accuracy", "xticks": lengths}
    return [curves("order", caption, lengths, panels, bounds=SHARE, chance=1 / TASK.vocab, **axes)]


def tabulate(data: Data) -> list[ReportTable]:
    """Tabulate the effect of permutations and the accuracy at both ends of the lengths."""
    setting, ends = data["setting"], {0: data["lengths"][0], -1: data["lengths"][-1]}
    caption = (
        f"{LAYERS} layers of width {WIDTH}, {setting['steps']} steps of {setting['batch']} "
        f"sequences, learning rate {setting['rate']:g}. Learned positions have a row for each of "
        f"{ends[-1]} positions, of which training sees {ends[0]}."
    )
    columns = {
        "positions": lambda group: group[0]["encoding"],
        "mask": lambda group: "causal" if group[0]["causal"] else "none",
        "parameters": lambda group: f"{data['counts'][group[0]['encoding']]:,}",
        "changed by shuffling": lambda group: f"{max(column(group, 'shuffled')):.1e}",
        "changed by reversing": lambda group: f"{max(column(group, 'reversed')):.1e}",
    }
    columns |= {f"accuracy at {n}": at("accuracy", place) for place, n in ends.items()}
    return [grouped_table(caption, data["runs"], ("encoding", "causal"), columns)]
