"""A Transformer encoder over image patches, compared with models without attention.

Question: Is attention useful for images, and does it look at what is drawn?

Method: An image is cut into 16 square patches, which a Transformer encoder of two layers and four
heads reads like words; a learned vector beside them carries the class. The same encoder with the
mean of all values in place of attention has the same number of parameters, within a few percent,
since its feed-forward blocks are wider by what queries and keys would have taken; a linear model on
the pixels is the simple baseline, and much smaller. Same images, steps and batches for all, one run
per seed. The images are MNIST if the data folder has it (a quick run learns from 10,000 of them),
and 1,797 bundled digits of 8x8 pixels if not, 1,200 of them for training, shuffled once.
"""

from functools import partial
from typing import Any, Final, NamedTuple, final

import torch
from jaxtyping import Float
from matplotlib.colors import LinearSegmentedColormap
from torch import Generator, Tensor, nn

from regard.lab.context import ExperimentContext
from regard.lab.datasets import MNIST, digits, patches
from regard.lab.estimates import column, difference, first, grouped_table, interval, spread
from regard.lab.experiment import Claim, Data, Plot, ReportTable, verdict
from regard.lab.plots import new_figure
from regard.lab.small_models import TaskBatch, seeded, train
from regard.layers import LayerOptions, LearnedPositions, TransformerEncoder
from regard.seeing.draw.shapes import MARK, STOPS, TEXT

ATTENTION, EVEN, LINEAR = "attention", "even mixing", "linear on pixels"
MODELS: Final = (ATTENTION, EVEN, LINEAR)
#: peak learning rates; a linear model takes larger ones
RATES: Final = {ATTENTION: 2e-3, EVEN: 2e-3, LINEAR: 1e-2}
#: number of digits
CLASSES: Final = 10
HEADS: Final = 4
#: pixels above this share of the brightest value are ink
INK: Final = 0.25
#: attention to ink as a multiple of its share of the area, from which it counts as selective: a
#: tenth more than even weights is the least that a reader of a map would notice
SELECTIVE: Final = 1.1
#: number of test images that are drawn
DRAWN: Final = 6
BATCH: Final = 128


class PatchOutput(NamedTuple):
    """Logits, one row for each image, and weights of the class vector, or None."""

    logits: Float[Tensor, "batch 1 classes"]
    weights: Float[Tensor, "batch patches"] | None


@final
class EvenMixing(nn.Module):
    """A replacement of self-attention in which every position gets the mean of all values."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.value, self.output = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: None,
        *,
        bias: None,
        need_weights: bool,
    ) -> tuple[Tensor, None]:
        """Return the mean value, whatever the query and the key are."""
        mean = self.value(value).mean(dim=1, keepdim=True)
        return self.output(mean).expand_as(query), None


@final
class PatchClassifier(nn.Module):
    """The vision Transformer: an encoder over patches and a learned class vector.

    Dosovitskiy et al. (2021), https://arxiv.org/abs/2010.11929.

    Args:
        count: number of patches of an image.
        pixels: number of pixels of a patch.
        encoder: encoder over the patches and the class vector.
    """

    def __init__(self, count: int, pixels: int, encoder: TransformerEncoder) -> None:
        super().__init__()
        self.embedding = nn.Linear(pixels, encoder.dim)
        self.first = nn.Parameter(torch.randn(1, 1, encoder.dim) * encoder.dim**-0.5)
        self.positions = LearnedPositions(count + 1, encoder.dim)
        self.encoder = encoder
        self.output = nn.Linear(encoder.dim, CLASSES)

    def forward(
        self, x: Float[Tensor, "batch patches pixels"], *, need_weights: bool = False
    ) -> PatchOutput:
        """Return logits and the class vector's weights in the last layer, averaged over heads."""
        first = self.first.expand(len(x), -1, -1)
        placed = self.positions(torch.cat([first, self.embedding(x)], dim=1))
        encoded, maps = self.encoder(placed, need_weights=need_weights)
        weights = maps[-1][:, :, 0, 1:].mean(dim=1) if maps else None
        return PatchOutput(self.output(encoded[:, :1]), weights)


def build(name: str, count: int, pixels: int, dim: int, layers: int) -> nn.Module:
    """Build a model; even mixing spends the parameters of queries and keys on inner layers."""
    if name == LINEAR:
        linear = nn.Linear(count * pixels, CLASSES)
        return nn.Sequential(nn.Flatten(), linear, nn.Unflatten(1, (1, CLASSES)))
    inner = 2 * dim if name == ATTENTION else 3 * dim
    encoder = TransformerEncoder(dim, HEADS, inner, layers, LayerOptions(dropout=0.0))
    if name == EVEN:
        for layer in encoder.layers:
            layer.attention = EvenMixing(dim)
    return PatchClassifier(count, pixels, encoder)


def learn(
    *,
    name: str,
    seed: int,
    data: str | None,
    images: int,
    steps: int,
    dim: int,
    layers: int,
    device: torch.device,
) -> dict[str, Any]:
    """Train one model and return its accuracy, and its weights if it has attention."""
    found = digits(data)
    x, labels = patches(found.train[:images], found.patch), found.train_labels[:images]
    model = seeded(seed, build, name, x.shape[1], x.shape[2], dim, layers)

    def draw(count: int, generator: Generator) -> TaskBatch:
        rows = torch.randint(len(x), (count,), generator=generator)
        return TaskBatch((x[rows],), labels[rows, None])

    train(model, draw, steps=steps, batch=BATCH, rate=RATES[name], seed=seed, device=device)
    tested = patches(found.test, found.patch).to(device)
    watch = partial(model.eval(), need_weights=True) if name == ATTENTION else model.eval()
    with torch.no_grad():
        output = watch(tested)
    logits = getattr(output, "logits", output)
    right = logits[:, 0].argmax(-1).cpu() == found.test_labels
    result: dict[str, Any] = {"parameters": sum(p.numel() for p in model.parameters())}
    result["accuracy"] = float(right.float().mean())
    if name != ATTENTION:
        return result
    inked = (tested.amax(dim=2) > INK).float()
    share = output.weights / output.weights.sum(dim=1, keepdim=True)
    return result | {
        "on_ink": float((share * inked).sum(dim=1).mean()),
        "ink_area": float(inked.mean()),
        "maps": [[round(w, 5) for w in row] for row in share[:DRAWN].tolist()],
    }


def measure(context: ExperimentContext) -> Data:
    """Train every model with every seed."""
    data = context.folder_with(MNIST)
    images, steps, dim = context.choose((10_000, 250, 48), (60_000, 1500, 64))
    settings = {"data": data, "images": images, "steps": steps, "dim": dim, "layers": 2}
    axes = {"name": MODELS, "seed": context.seeds}
    runs = context.grid("{name}, seed {seed}", learn, axes, **settings)
    found = digits(data)
    shown = found.test[:DRAWN].double().round(decimals=3)
    return {
        "set": found.name,
        "patch": found.patch,
        "patches": (found.test.shape[1] // found.patch) ** 2,
        "train_images": min(images, len(found.train)),
        "test_images": len(found.test),
        "steps": steps,
        "batch": BATCH,
        "seeds": list(context.seeds),
        "runs": runs,
        "shown": shown.tolist(),
        "shown_labels": found.test_labels[:DRAWN].tolist(),
    }


def judge(data: Data) -> list[Claim]:
    """Judge the documents' claims by accuracies and weights."""
    points = {name: [100 * share for share in _accuracies(data, name)] for name in MODELS}
    gains = [difference(points[ATTENTION], points[other]) for other in (EVEN, LINEAR)]
    on_ink, area = (column(data["runs"], what, name=ATTENTION) for what in ("on_ink", "ink_area"))
    times = interval([share / even for share, even in zip(on_ink, area, strict=True)])
    shares = ", ".join(f"{100 * share:.0f}%" for share in on_ink)
    return [
        Claim(
            "document 4, exercise 16-2",
            "Self-attention is useful in computer vision too.",
            verdict(any(gain.low > 0 for gain in gains), all(gain.low > 0 for gain in gains)),
            f"On {data['set']}, the encoder over {data['patches']} patches classifies "
            f"{spread(interval(points[ATTENTION]), 1, '%')} of the test digits correctly. That is "
            f"{spread(gains[0])} points more than the same encoder with even mixing in place of "
            f"attention, and {spread(gains[1])} points more than a linear model on the pixels "
            f"({len(data['seeds'])} seeds, 95% intervals).",
        ),
        Claim(
            "document 2, 1.2",
            "Attention selects the regions that matter and ignores the background.",
            # weights that cannot be told from even ones are not selective
            verdict(times.low > 1, times.low >= SELECTIVE),
            f"Patches with ink are {100 * area[0]:.0f}% of all, and get {shares} of "
            f"the class vector's attention in the last layer, seed by seed: {spread(times, 2)} "
            f"times what even weights would give them. An interval from {SELECTIVE} times on "
            f"would be selective; one that includes 1 cannot be told from even weights. The "
            f"weights say where the model looked, which need not be why it decided.",
        ),
    ]


def _accuracies(data: Data, name: str) -> list[float]:
    return column(data["runs"], "accuracy", name=name)


def draw(data: Data) -> list[Plot]:
    """Draw a few images, and the attention over them."""
    count = len(data["shown"])
    figure, axes = new_figure(columns=count, rows=2)
    figure.set_size_inches(8.0, 3.2)
    maps = column(data["runs"], "maps", name=ATTENTION)[0]
    most = max(map(max, maps))
    inks = LinearSegmentedColormap.from_list("ink", STOPS)
    for above, below, image, label, weights in zip(
        axes[:count], axes[count:], data["shown"], data["shown_labels"], maps, strict=True
    ):
        side, end = round(len(weights) ** 0.5), len(image) - 0.5
        box = (-0.5, end, end, -0.5)
        above.imshow(image, cmap="Greys", vmin=0, vmax=1, extent=box)
        above.set_title(f"a {label}")
        grid = [weights[row * side : (row + 1) * side] for row in range(side)]
        below.imshow(grid, cmap=inks, vmin=0, vmax=most, extent=box, interpolation="nearest")
        below.contour(image, levels=[INK], colors=MARK, linewidths=1)
        below.set_title(f"at most {max(weights):.0%}", fontsize=9)
    for panel in axes:
        panel.set(xticks=[], yticks=[])
        panel.grid(visible=False)
    figure.suptitle(
        f"Test images, and where the class vector looked ({data['set']})", fontsize=11, color=TEXT
    )
    caption = (
        "Above: the first test images. Below: the share of the class vector's attention that each "
        f"patch of {data['patch']}x{data['patch']} pixels got in the last layer, the mean of the "
        f"heads, seed {data['seeds'][0]}; darker is more, the darkest {most:.0%}. The line is the "
        "edge of the ink."
    )
    return [Plot("maps", caption, figure)]


def tabulate(data: Data) -> list[ReportTable]:
    """Tabulate accuracy and parameters of each model."""
    caption = (
        f"{data['set']}: {data['train_images']:,} training and {data['test_images']:,} test "
        f"images, {data['steps']} steps of {data['batch']} images, {len(data['seeds'])} seeds."
    )
    columns = {
        "model": first("name"),
        "parameters": first("parameters", ","),
        "accuracy (95% interval)": lambda group: spread(
            interval([100 * share for share in column(group, "accuracy")]), 1, "%"
        ),
    }
    return [grouped_table(caption, data["runs"], ("name",), columns)]
