"""What self-attention knows of order: nothing by itself, and how far each remedy reaches."""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Final

import torch
from torch import Generator, Tensor

from regard.lab import learning
from regard.lab.bench import Bench
from regard.lab.bodies import ENCODINGS, PositionedTransformer
from regard.lab.experiment import Claim, Data, Experiment, Plot, Table, Verdict
from regard.lab.plots import COLOURS, legend, line_with_band, new_figure
from regard.lab.statistics import Interval, interval
from regard.lab.tasks import Batch, Offsets

WIDTH: Final = 32
LAYERS: Final = 2
#: in float64, outputs that differ by less have the same value: sums were taken in another order
SAME: Final = 1e-9
#: a model knows the order if it is right this often
KNOWS: Final = 0.9
#: and knows something of it if it is right so much more often than without positions and mask
MORE: Final = 0.1
TASK: Final = Offsets((2,))
EXAMPLES: Final = 256
NONE: Final = "none"
#: what a reader may replace: the name in the report, and the encoding that stands for it
AS_NAMED: Final = {name: name for name in ENCODINGS}


def model(encoding: str, causal: bool, longest: int) -> learning.TokenModel:
    """Two layers of a Transformer encoder."""
    body = PositionedTransformer(
        WIDTH, layers=LAYERS, encoding=encoding, causal=causal, longest=longest
    )
    return learning.TokenModel(TASK.vocab, TASK.classes, WIDTH, body)


def shuffle(
    *, encoding: str, causal: bool, seed: int, length: int, device: torch.device
) -> dict[str, float]:
    """The largest difference between shuffled outputs and outputs of shuffled inputs.

    Zero where the order of the inputs has no part in the outputs. `reversed` reads the sequence
    from its end, `shuffled` takes its vectors in a random order.
    """
    learner = learning.seeded(seed, model, encoding, causal, length)
    body = learner.body.double().to(device).eval()
    chance = Generator().manual_seed(seed)
    x = torch.randn(2, length, WIDTH, generator=chance, dtype=torch.float64).to(device)

    @torch.no_grad()
    def difference(order: Tensor) -> float:
        return float((body(x[:, order]) - body(x)[:, order]).abs().max())

    backwards = torch.arange(length).flip(0)
    return {
        "shuffled": difference(torch.randperm(length, generator=chance)),
        "reversed": difference(backwards),
    }


def run(
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
) -> list[float]:
    """Right answers at each length, after training at lengths up to `trained_to`."""
    learner = learning.seeded(seed, model, encoding, causal, max(lengths))

    def draw(chance: Generator) -> Batch:
        shortest = max(TASK.offsets) + 1
        length = int(torch.randint(shortest, trained_to + 1, (1,), generator=chance))
        return TASK.draw(batch, length, chance)

    learning.train(learner, draw, steps=steps, lr=rate, seed=seed, device=device)

    def right(length: int) -> float:
        def draw(chance: Generator) -> Batch:
            return TASK.draw(EXAMPLES, length, chance)

        return learning.accuracy(learner, draw, batches=1, seed=seed, device=device)

    return [right(length) for length in lengths]


def measure(bench: Bench, encodings: Mapping[str, str] = AS_NAMED) -> Data:
    """Every encoding with and without a causal mask, shuffled and trained.

    Args:
        bench: where to run.
        encodings: which encoding stands behind each name of the report; itself by default.
    """
    trained_to = bench.choose(16, 32)
    lengths = [trained_to * part // 2 for part in (2, 3, 4, 6, 8)]
    setting = {"rate": 0.005, "steps": bench.choose(300, 2000), "batch": bench.choose(32, 256)}
    names = list(product(encodings, (False, True), bench.seeds))
    cases: list[tuple[str, Data]] = [
        (
            f"{name}, {'causal' if causal else 'full'}",
            {"encoding": encodings[name], "causal": causal, "seed": seed},
        )
        for name, causal, seed in names
    ]
    moved = bench.each(shuffle, [(label, case | {"length": trained_to}) for label, case in cases])
    learned = setting | {"trained_to": trained_to, "lengths": lengths}
    right = bench.each(run, [(label, case | learned) for label, case in cases])
    runs = [
        {"name": name, "causal": causal, "seed": seed, **shuffled, "accuracy": share}
        for (name, causal, seed), shuffled, share in zip(names, moved, right, strict=True)
    ]
    counts = {
        name: sum(p.numel() for p in model(encoding, False, lengths[-1]).parameters())
        for name, encoding in encodings.items()
    }
    return {"setting": setting, "lengths": lengths, "runs": runs, "counts": counts}


def judge(data: Data) -> list[Claim]:
    """Order without positions, with them, with a mask alone, and past the trained length."""
    return [_blind(data), _told_apart(data), _necessary(data), _longer(data)]


def _blind(data: Data) -> Claim:
    moved = _largest(data, NONE, False, "shuffled")
    right = _share(data, NONE, False)
    blind = moved < SAME and right.mean < KNOWS
    return Claim(
        "document 3, section 3",
        "Self-attention by itself has no sense of order.",
        "holds" if blind else "does not hold",
        f"Without positions, shuffling the inputs shuffles the outputs: the largest difference is "
        f"{moved:.1e} in float64. Trained to name the token two places before, it is right in "
        f"{right.mean:.0%}, where guessing is right in {1 / TASK.classes:.0%}.",
    )


def _told_apart(data: Data) -> Claim:
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
            f" Not so with {_list(mirrored)} (largest difference {worst:.1e}): what only counts "
            "how far apart two tokens are is the same in a mirror, unless a causal mask is there."
        )
    return Claim(
        "document 3, section 3",
        'Position encodings let a Transformer tell "a b c" from "c b a".',
        _verdict(len(apart), len(names)),
        evidence,
    )


def _necessary(data: Data) -> Claim:
    moved = _least(data, NONE, True, "shuffled")
    masked, bare = _share(data, NONE, True), _share(data, NONE, False)
    best = max((_share(data, name, True).mean, name) for name in _encodings(data))
    verdict: Verdict = "holds"
    if masked.mean >= KNOWS:
        verdict = "does not hold"
    elif moved > SAME and masked.mean > bare.mean + MORE:
        verdict = "holds with limits"
    return Claim(
        "document 3, section 4",
        "Position encodings are indispensable: without them order is lost.",
        verdict,
        f"A causal mask alone brings order in: without positions, shuffling then changes outputs "
        f"by at least {moved:.1e}, and {masked.mean:.0%} are right instead of {bare.mean:.0%} "
        f"without the mask; {best[1]} positions under the same mask reach {best[0]:.0%}. The "
        "document leaves the mask out, which every decoder has.",
    )


def _longer(data: Data) -> Claim:
    first, last = data["lengths"][0], data["lengths"][-1]
    near, far = (_share(data, "sinusoidal", False, place) for place in (0, -1))
    solved = [name for name in _encodings(data) if _share(data, name, False).mean >= KNOWS]
    reach = [name for name in solved if _share(data, name, False, -1).mean >= KNOWS]
    verdict: Verdict = "does not hold"
    if near.mean >= KNOWS:
        verdict = "holds" if far.mean >= KNOWS else "holds with limits"
    return Claim(
        "document 3, section 3",
        "Sines and cosines let a model sense the relative or absolute order of tokens.",
        verdict,
        f"Sinusoidal positions are right in {near.mean:.0%} at {first} tokens, the longest of "
        f"training, and in {far.mean:.0%} at {last}. Without a mask, {_list(solved)} learn the "
        f"task, and of these {_list(reach)} still know it at {last} tokens.",
    )


def _verdict(holding: int, of: int) -> Verdict:
    if holding == of:
        return "holds"
    return "holds with limits" if holding else "does not hold"


def _list(names: Sequence[str]) -> str:
    if len(names) < 2:
        return "".join(names) or "none"
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _encodings(data: Data) -> list[str]:
    return [name for name in data["counts"] if name != NONE]


def _runs(data: Data, name: str, causal: bool) -> list[Data]:
    return [run for run in data["runs"] if (run["name"], run["causal"]) == (name, causal)]


def _largest(data: Data, name: str, causal: bool, how: str) -> float:
    return max(float(run[how]) for run in _runs(data, name, causal))


def _least(data: Data, name: str, causal: bool, how: str) -> float:
    return min(float(run[how]) for run in _runs(data, name, causal))


def _share(data: Data, name: str, causal: bool, place: int = 0) -> Interval:
    """Right answers at one of the lengths, the longest of training if not said otherwise."""
    return interval([run["accuracy"][place] for run in _runs(data, name, causal)])


def draw(data: Data) -> list[Plot]:
    """Right answers over the length, in an encoder and under a causal mask."""
    figure, axes = new_figure(columns=2)
    lengths = data["lengths"]
    for place, causal in enumerate((False, True)):
        for name, colour in zip(data["counts"], COLOURS, strict=False):
            shares = [_share(data, name, causal, at) for at in range(len(lengths))]
            low, high = [max(0.0, s.low) for s in shares], [min(1.0, s.high) for s in shares]
            means = [share.mean for share in shares]
            line_with_band(axes[place], lengths, means, low, high, label=name, colour=colour)
        axes[place].axhline(1 / TASK.classes, color="#6b7280", linestyle=":")
        axes[place].set(title="causal mask" if causal else "no mask", ylim=(0, 1.03))
        axes[place].set_xticks(lengths, [str(length) for length in lengths])
        axes[place].set_xlabel("length [tokens]")
    axes[0].set_ylabel("share of right answers")
    legend(axes[1])
    caption = (
        f"The token two places before, named by models that were trained on up to {lengths[0]} "
        "tokens, with 95% intervals over seeds; the dotted line is chance."
    )
    return [Plot("order", caption, figure)]


def tabulate(data: Data) -> list[Table]:
    """What shuffling changes, and what is right, at both ends of the lengths."""
    first, last = data["lengths"][0], data["lengths"][-1]
    rows = [
        [
            name, "causal" if causal else "none", f"{data['counts'][name]:,}",
            f"{_largest(data, name, causal, 'shuffled'):.1e}",
            f"{_largest(data, name, causal, 'reversed'):.1e}",
            learning.percent(_share(data, name, causal)),
            learning.percent(_share(data, name, causal, -1)),
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
        f"right at {first}", f"right at {last}",
    ]  # fmt: skip
    return [Table(caption, columns, rows)]


EXPERIMENT: Final = Experiment(
    name="order",
    question="Does self-attention know the order of tokens, and past the trained length?",
    method=(
        f"A Transformer encoder of {LAYERS} layers and width {WIDTH}, with six ways to know "
        "positions, without a mask and with a causal one. First, untrained and in float64: how "
        "far outputs of shuffled and of reversed inputs are from shuffled and reversed outputs. "
        "Then trained to name the token two places before, with the same steps, examples and "
        "learning rate, and tested at up to four times the longest length of training."
    ),
    measure=measure,
    judge=judge,
    draw=draw,
    tabulate=tabulate,
)
