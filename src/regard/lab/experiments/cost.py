"""What layers cost as sequences grow longer and vectors wider."""

import platform
from collections.abc import Sequence
from typing import Final

import torch

from regard.lab import families as kinds
from regard.lab.bench import Bench
from regard.lab.curves import Curve, counted, held, matrices_share, meet, say, size, timed
from regard.lab.experiment import Claim, Data, Experiment, Verdict
from regard.lab.experiments.cost_figures import draw, tabulate
from regard.lab.families import FAMILIES, Family
from regard.lab.statistics import PowerLaw
from regard.lab.timing import Size, count_sizes, time_sizes

PATHS: Final = {"fast": "auto", "reference": "reference"}
KERNELS: Final = (1, 3, 5, 9, 17, 33)
#: counts are exact: only a lower power beside the highest can move their exponent
EXACT: Final = 0.05
#: times follow an exponent if their interval comes this near: caches and calls bend them so much
NEAR: Final = 0.2
FLOAT: Final = 4
TABLE: Final = "document 3, table of CNN, RNN and self-attention"


def measure(bench: Bench, families: Sequence[Family] = FAMILIES) -> Data:
    """Counts and times of all families; a reader's own may stand among them."""
    lengths: Sequence[int] = [2**i for i in bench.choose(range(5, 12), range(7, 15))]
    widths: Sequence[int] = [2**i for i in bench.choose(range(6, 11), range(7, 13))]
    length, width = bench.choose((128, 64), (256, 256))
    sweeps = {
        "length": [{"length": n, "width": width} for n in lengths],
        "width": [{"length": length, "width": d} for d in widths],
    }
    kernels = [{"length": length, "width": width, "kernel_size": k} for k in KERNELS]
    data: Data = {
        "machine": _machine(bench.device),
        "length": length,
        "width": width,
        "batch": bench.choose(4, 8),
        "kernel": kinds.KERNEL,
        "counts": {},
        "runs": {},
    }
    for family in families:
        own = sweeps | ({"kernel_size": kernels} if family is kinds.CONVOLUTION else {})
        data["counts"][family.name] = _count(bench, family, own)
        data["runs"][family.name] = _time(bench, family, own, data["batch"])
    return data


def _count(bench: Bench, family: Family, sweeps: dict[str, list[Size]]) -> Data:
    longest = bench.choose(512, 2048)  # a loop over more steps counts nothing new
    return {
        name: bench.once(
            f"{family.name}, operations",
            count_sizes,
            family=family.told(),
            sizes=[size for size in sizes if size["length"] <= longest],
        )
        for name, sizes in sweeps.items()
    }


def _time(bench: Bench, family: Family, sweeps: dict[str, list[Size]], batch: int) -> Data:
    return {
        path: {
            name: bench.once(
                f"{family.name}, {path}, {name}",
                time_sizes,
                family=family.told(),
                sizes=sizes,
                batch=batch,
                backend=backend,
                patience=bench.choose(0.06, 0.2),
                room=bench.choose(1, 16) * 2**30,
            )
            for name, sizes in sweeps.items()
        }
        for path, backend in PATHS.items()
    }


def _machine(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"CPU ({platform.machine()}), {threads} thread{'s' if threads > 1 else ''}"


def judge(data: Data) -> list[Claim]:
    """The documents' orders of growth beside counts, times and memory."""
    return [
        _order(data, kinds.CONVOLUTION, "O(k n d²)", {"kernel_size": 1, "length": 1, "width": 2}),
        _order(data, kinds.RNN, "O(n d²)", {"length": 1, "width": 2}),
        _attention_order(data),
        _self_attentive_order(data),
        _parallel(data),
        _memory(data),
        _long_sequences(data),
    ]


def _order(data: Data, family: Family, order: str, exponents: dict[str, int]) -> Claim:
    """A claim that is exact in what it counts; whether the clock agrees is said beside it."""
    counts = {s: counted(data, family.name, s, "operations").law() for s in exponents}
    times = {s: timed(data, family.name, "fast", s).law() for s in exponents}
    evidence = (
        f"Multiply-adds grow with exponents {_listed(counts)}; "
        f"training on the fast path takes time with exponents {_listed(times)}."
    )
    verdict: Verdict = "does not hold"
    if _follow(counts, exponents, EXACT):
        verdict = "holds" if _follow(times, exponents, NEAR) else "holds with limits"
    if verdict == "holds with limits":
        evidence += " The count is right; the clock of this machine follows it only in part."
    return Claim(TABLE, f"A layer of the kind {family.name} costs {order}.", verdict, evidence)


def _attention_order(data: Data) -> Claim:
    exponents = {"length": 2, "width": 1}
    whole, bare = kinds.SELF_ATTENTION.name, kinds.BARE.name
    counts = {
        name: {s: counted(data, name, s, "operations").law() for s in exponents}
        for name in (whole, bare)
    }
    times = {s: timed(data, whole, "fast", s).law() for s in exponents}
    equal = matrices_share(data, whole, bare)
    verdict: Verdict = "does not hold"
    if _follow(counts[bare], exponents, EXACT):
        every = _follow(counts[whole], exponents, EXACT)
        verdict = "holds" if every and _follow(times, exponents, NEAR) else "holds with limits"
    evidence = (
        f"Without matrices the multiply-adds have exponents {_listed(counts[bare])}. "
        f"With those for queries, keys, values and output they have {_listed(counts[whole])}: "
        "the table leaves out their n d². "
    )
    if equal is not None:
        evidence += (
            f"At d = {data['width']} the pairs outweigh the matrices only from n = {equal:.0f}. "
        )
    evidence += f"Times in training on the fast path: {_listed(times)}."
    return Claim(TABLE, "A layer of self-attention costs O(n² d).", verdict, evidence)


def _self_attentive_order(data: Data) -> Claim:
    looking, plain = kinds.SELF_ATTENTIVE.name, kinds.RNN.name
    curve = counted(data, looking, "length", "operations")
    base = counted(data, plain, "length", "operations").law()
    law, steps = curve.law(), _look_back(data, curve)
    times = timed(data, looking, "fast", "length").law()
    seconds = timed(data, looking, "reference", "length").law()
    shown = _is(times, 2, NEAR)
    verdict: Verdict = "does not hold"
    if _is(steps, 2, EXACT) and _is(base, 1, EXACT):
        verdict = "holds" if _is(law, 2, EXACT) and shown else "holds with limits"
    return Claim(
        "document 1, summary",
        "A self-attentive RNN costs 1 + 2 + ... + T = O(T²), where a plain RNN costs O(T).",
        verdict,
        f"Looking back alone takes multiply-adds with exponent {say(steps)}; with the four "
        f"matrices of each step it is {say(law)}, and {say(base)} for the plain RNN. Times in "
        f"training: {say(times)} on the fast path, {say(seconds)} by the definition."
        + ("" if shown else " The clock does not show the square at these lengths."),
    )


def _look_back(data: Data, curve: Curve) -> PowerLaw | None:
    """What is left when each step's matrices are taken off: 4 d² for a step of the cell `rnn`."""
    rows = data["counts"][kinds.SELF_ATTENTIVE.name]["length"]
    left = [row["operations"] - (4 * row["length"] + 1) * row["width"] ** 2 for row in rows]
    return Curve(curve.x, left, left, left).law()


def _parallel(data: Data) -> Claim:
    claimed = {kinds.CONVOLUTION.name: 0, kinds.RNN.name: 1, kinds.SELF_ATTENTION.name: 0}
    chains = {name: counted(data, name, "length", "chain") for name in claimed}
    right = all(_is(chains[name].law(), claimed[name], EXACT) for name in claimed)
    looking = counted(data, kinds.SELF_ATTENTIVE.name, "length", "chain")
    told = ", ".join(f"{name} {curve.y[-1]:,}" for name, curve in chains.items())
    return Claim(
        TABLE,
        "Convolution and self-attention handle all n positions at once, an RNN one by one.",
        "holds" if right else "does not hold",
        f"The longest chain of products that wait for each other, at n = {looking.x[-1]:,}: "
        f"{told}. The self-attentive RNN, which the table does not have, waits for "
        f"{looking.y[-1]:,}: looking back does not make it parallel (exponent "
        f"{say(looking.law())}).",
    )


def _memory(data: Data) -> Claim:
    name, width = kinds.BARE.name, data["width"]
    by_definition, fused = (held(data, name, path, "length") for path in ("reference", "fast"))
    slow, fast = by_definition.law(), fused.law()
    pairs = data["batch"] * by_definition.x[-1] ** 2
    numbers = by_definition.y[-1] / pairs / FLOAT
    verdict: Verdict = "does not hold"
    if slow is not None and slow.last > 2 - NEAR:
        whole = numbers >= width / 2 and fast is not None and fast.last > 2 - NEAR
        verdict = "holds" if whole else "holds with limits"
    return Claim(
        "document 3, summary",
        "Self-attention needs O(n² d) of memory.",
        verdict,
        f"In training the definition holds {numbers:.1f} numbers for each pair of positions at "
        f"n = {by_definition.x[-1]:,}, not d = {width} of them: the weights are n², with exponent "
        f"{say(slow)}. The fast path makes no weights, and holds memory with exponent "
        f"{say(fast)}: {by_definition.y[-1] / _at(fused, by_definition.x[-1]):.1f} times less.",
    )


def _at(curve: Curve, x: int) -> int | float:
    return curve.y[curve.x.index(x)] if x in curve.x else curve.y[-1]


def _long_sequences(data: Data) -> Claim:
    attention = timed(data, kinds.SELF_ATTENTION.name, "fast", "length")
    found = {}
    for family in (kinds.RNN, kinds.CONVOLUTION):
        other = timed(data, family.name, "fast", "length")
        found[family.name] = (meet(attention, other), min(attention.x[-1], other.x[-1]))
    reached = [at is not None for at, _ in found.values()]
    verdict: Verdict = "does not hold"
    if any(reached):
        verdict = "holds" if all(reached) else "holds with limits"
    told = "; ".join(f"than the {name} {size(*where)}" for name, where in found.items())
    return Claim(
        "document 3, summary",
        "Long sequences are the bottleneck of self-attention.",
        verdict,
        f"The length n from which a layer of width {data['width']} trains more slowly on the fast "
        f"path of this machine ({data['machine']}): {told}.",
    )


def _follow(laws: dict[str, PowerLaw | None], exponents: dict[str, int], within: float) -> bool:
    return all(_is(laws[sweep], exponent, within) for sweep, exponent in exponents.items())


def _is(law: PowerLaw | None, exponent: int, within: float) -> bool:
    return law is not None and law.includes(exponent, within=within)


def _listed(laws: dict[str, PowerLaw | None]) -> str:
    letters = {"length": "n", "width": "d", "kernel_size": "k"}
    return ", ".join(f"{letters[sweep]}: {say(law)}" for sweep, law in laws.items())


EXPERIMENT: Final = Experiment(
    name="cost",
    question="What do a convolution, an RNN, a self-attentive RNN and self-attention cost as "
    "sequences grow longer and vectors wider?",
    method="One layer of each family, of equal width, on random vectors: against the length at a "
    "fixed width, and against the width at a fixed length; the convolution against its kernel too. "
    "Self-attention has a head for each 64 of its width. Multiply-adds and chains of dependent "
    "products are counted on the definition, where sums and activations are left out. Times are "
    "medians of at least three runs after a warm-up, with quartiles as bands, for the definition "
    "and for the fast path, forward alone and with the way back. Memory is the most that is held "
    "at a time beyond weights and inputs: by torch's allocator on CUDA, and as the sum of live "
    "tensors on the CPU. Exponents are fitted in log-log to the five largest sizes of each curve, "
    "with 95% intervals; where the points bend or scatter there is said to be none. A curve ends "
    "early where a run takes too long or too much memory.",
    measure=measure,
    judge=judge,
    draw=draw,
    tabulate=tabulate,
)
