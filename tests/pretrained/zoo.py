"""Many architectures of transformers with random weights: what `regard.capture` shows of each.

PYTHONPATH=tests python -m pretrained.zoo            # write the table of docs/guides/zoo.md anew
PYTHONPATH=tests python -m pretrained.zoo bert t5    # print the rows of some architectures

Each is captured in five modes and compared with its own `output_attentions=True` under eager
attention, by the rule that kernels are accepted by: with the model in float64 as the reference, the
error of regard's maps is at most twice that of the model's own in the same precision.
"""

import copy
import re
import sys
import tomllib
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import regard
from regard.errors import RegardError

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "zoo.md"
BEGIN, END = "<!-- zoo -->", "<!-- /zoo -->"
MODES = ("default", "eager", "float64", "right", "left")
#: absolute error of weights that rounding alone explains
TINY = 1e-5
#: two texts of equal length, and the real tokens of the second one where it is padded
LENGTH, SHORT, WRITTEN = 11, 7, 5

IDS = {"vocab_size": 60, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZES |= {"intermediate_size": 36, "max_position_embeddings": 64}
ENCODER = {**IDS, **SIZES}
DECODER = {**ENCODER, "num_key_value_heads": 2}
GPT = {**IDS, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
BART = {
    **IDS,
    "d_model": 32,
    **{f"{side}_layers": 2 for side in ("encoder", "decoder")},
    **{f"{side}_attention_heads": 4 for side in ("encoder", "decoder")},
    **{f"{side}_ffn_dim": 37 for side in ("encoder", "decoder")},
    "max_position_embeddings": 64,
    "decoder_start_token_id": 1,
    "forced_eos_token_id": None,
}
T5 = {**IDS, "d_model": 32, "d_kv": 8, "d_ff": 37, "num_layers": 2, "num_heads": 4}
T5 |= {"decoder_start_token_id": 0}
PICTURE = {**SIZES, "image_size": 12, "patch_size": 4}
SWIN = {"image_size": 16, "patch_size": 2, "embed_dim": 8, "depths": [2, 2], "num_heads": [2, 2]}
SWIN |= {"window_size": 4}
SOUND = {**ENCODER, "conv_dim": (8, 8), "conv_kernel": (5, 3), "conv_stride": (3, 2)}
SOUND |= {
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
    "num_feat_extract_layers": 2,
}


class Species(NamedTuple):
    """An architecture of zoo.toml: class, arguments of its configuration, and what it reads.

    `length` is that of its longer text.
    """

    model: str
    sizes: dict[str, Any]
    reads: str = "text"
    length: int = LENGTH


BASES = {
    "ids": IDS,
    "sizes": SIZES,
    "encoder": ENCODER,
    "decoder": DECODER,
    "gpt": GPT,
    "bart": BART,
    "t5": T5,
    "picture": PICTURE,
    "swin": SWIN,
    "sound": SOUND,
}


def _species(
    model: str,
    base: str | None = None,
    without: Sequence[str] = (),
    sizes: dict[str, Any] | None = None,
    **more: Any,
) -> Species:
    own = {k: v for k, v in BASES.get(base, {}).items() if k not in without}
    return Species(model, own | (sizes or {}), **more)


with Path(__file__).with_name("zoo.toml").open("rb") as file:
    ZOO = {name: _species(**row) for name, row in tomllib.load(file).items()}

KINDS = {
    "attentions": "self",
    "encoder_attentions": "encoder-self",
    "decoder_attentions": "decoder-self",
    "cross_attentions": "cross",
}
#: maps (heads, rows, columns) of one text by kind, in the order of layers
Maps = dict[str, list[Tensor]]


class Verdict(NamedTuple):
    """One of equal, refused, noted and none (the model has no such mode), with the reason."""

    word: str
    reason: str = ""


class DifferentError(AssertionError):
    """A map that is not that of the model, without a word about it."""


def build(species: Species) -> Any:
    """Return a model with weights so large that its maps are not flat."""
    import transformers

    kind = getattr(transformers, species.model)
    torch.manual_seed(2)
    model = kind(kind.config_class(**species.sizes)).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


def eager(model: Any, dtype: torch.dtype = torch.float32) -> Any:
    """Return a copy of a model that computes its attention in the open."""
    config = copy.deepcopy(model.config)
    config._attn_implementation = "eager"
    made = type(model)(config).eval()
    made.load_state_dict(model.state_dict())
    return made.to(dtype)


class Inputs(NamedTuple):
    """What two texts, pictures or recordings are read as, and the span of the real positions."""

    given: dict[str, Tensor]
    spans: list[tuple[int, int]]

    def to(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Return the tensors with those of floats in another precision."""
        return {k: x.to(dtype) if x.is_floating_point() else x for k, x in self.given.items()}


def inputs_of(species: Species, model: Any, padding: str | None) -> Inputs:
    """Return the inputs."""
    draw, length = torch.Generator().manual_seed(5), species.length
    spans = [(0, length)] * 2
    config = model.config
    if species.reads == "text":
        mask = torch.ones(2, length, dtype=torch.long)
        if padding is not None:
            spans[1] = (length - SHORT, length) if padding == "left" else (0, SHORT)
            mask[1] = 0
            mask[1, slice(*spans[1])] = 1
        ids = torch.randint(3, 60, (2, length), generator=draw)
        given = {"input_ids": ids.masked_fill(mask == 0, 0), "attention_mask": mask}
    else:
        size = getattr(config, "image_size", 16)
        size = size[0] if isinstance(size, list) else size
        name, *shape = {
            "picture": ("pixel_values", 3, size, size),
            "sound": ("input_values", 80),
            "frames": ("input_values", 12, 8),
            "features": ("input_features", 24, 8),
            "mel": ("input_features", 8, 14),
        }[species.reads]
        given = {name: torch.randn(2, *shape, generator=draw)}
    if config.is_encoder_decoder:
        given["decoder_input_ids"] = torch.randint(3, 60, (2, WRITTEN), generator=draw)
    return Inputs(given, spans)


def own_maps(model: Any, species: Species, inputs: Inputs) -> list[Maps]:
    """Return what the model itself returns as its attentions, for each text."""
    with torch.no_grad():
        out = model(**inputs.to(model.dtype), output_attentions=True)
    found = {kind: getattr(out, key, None) for key, kind in KINDS.items()}
    layers = {kind: list(one) for kind, one in found.items() if one and one[0] is not None}
    return cut(layers, species, inputs)


def cut(layers: dict[str, list[Tensor]], species: Species, inputs: Inputs) -> list[Maps]:
    """Return the maps of each text without its padding."""
    texts: list[Maps] = [{} for _ in inputs.spans]
    for kind, maps in layers.items():
        for layer in maps:
            if not isinstance(layer, Tensor) or layer.shape[0] != len(texts):  # pieces or windows
                for text in texts:
                    text.setdefault(kind, []).append(torch.empty(0))
                continue
            for text, span, weights in zip(texts, inputs.spans, layer, strict=False):
                rows, columns = (
                    slice(*span) if n == species.length else slice(None) for n in weights.shape[-2:]
                )
                if kind == "cross":
                    rows = slice(None)
                text.setdefault(kind, []).append(weights[..., rows, columns])
    return texts


def seen_maps(seen: Any, count: int) -> list[Maps]:
    """Return the maps of the traces of each text."""
    traces, texts = seen.traces, []
    if len(traces) % count:
        raise DifferentError(f"{len(traces)} traces of {count} texts")
    for i in range(count):
        own: Maps = {}
        for trace in traces[i::count]:
            for found in trace.maps:
                own.setdefault(found.kind, []).append(torch.as_tensor(found.weights))
        texts.append(own)
    return texts


def label(seen: Any, inputs: Inputs, targets: Any) -> None:
    """Name the real positions of each text."""
    names = [[str(i) for i in range(*span)] for span in inputs.spans]
    seen.label(names, targets and [list(map(str, row)) for row in targets])


def compare(seen: Any, exact: list[Maps] | None, rounded: list[Maps] | None) -> Verdict:
    """Return the verdict on what was seen.

    Args:
        seen: by `regard.capture`.
        exact: the model's own maps in float64; None if it does not run so, and left out where
            masks underflow to NaN.
        rounded: its own maps in float32; None if the model ran in float64.
    """
    if rounded is not None and (exact is None or has_nan(exact)):
        exact, rounded = rounded, None
    assert exact is not None
    if has_nan(exact):
        return Verdict("none", "the model itself computes NaN")
    try:
        texts = seen_maps(seen, len(exact))
    except RegardError as error:
        return Verdict("refused", seen.notes[0] if seen.notes else str(error))
    lacks = False
    for i, (own, expected) in enumerate(zip(texts, exact, strict=True)):
        for kind, maps in expected.items():
            found = own.get(kind, []) if kind != "self" else [x for k in own for x in own[k]]
            bounds = [TINY] * len(maps)
            if rounded is not None:
                bounds = [
                    2 * off(*pair) + TINY for pair in zip(rounded[i][kind], maps, strict=True)
                ]
            lacks |= not matches(found, maps, bounds, f"text {i}, {kind}")
    if not lacks and any(expected.values() for expected in exact):
        return Verdict("equal")
    if not seen.notes:
        raise DifferentError("maps are missing without a note")
    return Verdict("noted", seen.notes[0])


KERNELS = "the model itself computes something else by its default kernel than by the eager one"


def kernels_agree(model: Any, inputs: Inputs) -> bool:
    """Return whether a model's own outputs at real positions are the same by both kernels."""
    with torch.no_grad():
        pair = [one(**inputs.given)[0] for one in (model, eager(model))]
    if pair[0].ndim == 3 and pair[0].shape[1] == inputs.spans[0][1]:
        pair = [
            torch.cat([x[slice(*s)] for x, s in zip(out, inputs.spans, strict=True)])
            for out in pair
        ]
    return bool((pair[0] - pair[1]).abs().max() <= 1e-2 * pair[1].abs().max())


def has_nan(texts: list[Maps]) -> bool:
    return any(bool(x.isnan().any()) for own in texts for maps in own.values() for x in maps)


def off(a: Tensor, b: Tensor) -> float:
    """Return the largest difference; with the mean of heads if that is what the model returns."""
    if a.shape != b.shape:
        return float("inf")
    if b.numel() and bool((b == b[:1]).all()):
        a = a.mean(dim=0, keepdim=True)
    return float((a - b).abs().max()) if a.numel() else 0.0


def as_weights(own: Tensor) -> Tensor:
    """Return what a model returns as weights: some return the scores before their softmax."""
    return (
        own
        if bool((own.sum(dim=-1) < 1 + 1e-3).all()) and bool((own >= 0).all())
        else own.softmax(-1)
    )


def matches(found: list[Tensor], maps: list[Tensor], bounds: list[float], where: str) -> bool:
    """Return whether all maps of a model were found; raises if one was found that it has not.

    Maps that the model does not return, such as those of a pooling head, cannot be compared.
    """
    left = list(range(len(maps)))
    extra = []
    for x in found:
        errors = {i: off(x, as_weights(maps[i])) for i in left}
        near = [i for i, error in errors.items() if error <= bounds[i]]
        if near:
            left.remove(near[0])
        else:
            extra.append((tuple(x.shape), {i: f"{error:.1g}" for i, error in errors.items()}))
    if extra and any(maps[i].numel() for i in left):
        raise DifferentError(f"{where}: {extra}")
    return not left


def study(name: str) -> dict[str, Verdict]:
    """Return the verdict on an architecture in each mode; raises where a map is another one."""
    species = ZOO[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = build(species)
        verdicts = {}
        for mode in MODES:
            try:
                verdicts[mode] = examine(species, model, mode)
            except DifferentError as error:
                raise DifferentError(f"{name}, {mode}: {error}") from None
    return verdicts


def examine(species: Species, model: Any, mode: str) -> Verdict:
    """Capture a model in one mode, and compare."""
    padding = mode if mode in ("left", "right") else None
    if padding is not None and species.reads != "text":
        return Verdict("none", "it has no padding")
    inputs = inputs_of(species, model, padding)
    rounded = own_maps(eager(model), species, inputs)
    try:
        exact = own_maps(eager(model, torch.float64), species, inputs)
    except RuntimeError as error:  # some models do not run in float64
        if mode == "float64":
            return Verdict("none", f"the model itself: {error}".split("\n")[0])
        exact = None
    captured = model if mode != "eager" else eager(model)
    captured = copy.deepcopy(model).double() if mode == "float64" else captured
    if mode != "eager" and not kernels_agree(model, inputs):
        return Verdict("none", KERNELS)
    with torch.no_grad(), regard.capture(captured) as seen:
        captured(**inputs.to(captured.dtype))
    if padding is not None:
        label(seen, inputs, [range(WRITTEN)] * 2 if model.config.is_encoder_decoder else None)
    return compare(seen, exact, rounded if mode != "float64" else None)


def row_of(name: str, verdicts: dict[str, Verdict]) -> str:
    """Return the row of an architecture."""
    cells = ("-" if verdicts[mode].word == "none" else verdicts[mode].word for mode in MODES)
    return f"| {name} | {ZOO[name].model} | {' | '.join(cells)} |"


def reasons(name: str, verdicts: dict[str, Verdict]) -> list[str]:
    """Return a line with the reason why maps are refused or missing."""
    said = {found.reason: None for found in verdicts.values() if found.word in ("refused", "noted")}
    return [f"- {name}: {next(iter(said))}"] if said else []


def table(zoo: dict[str, dict[str, Verdict]]) -> str:
    """Return the table of all architectures, how often each verdict occurs, and the reasons."""
    counts = Counter(found.word for verdicts in zoo.values() for found in verdicts.values())
    total = ", ".join(f"{counts[word]} {word}" for word in ("equal", "refused", "noted"))
    head = [f"| architecture | class | {' | '.join(MODES)} |", f"|---|---|{'---|' * len(MODES)}"]
    rows = [row_of(*pair) for pair in zoo.items()]
    said = [line for pair in zoo.items() for line in reasons(*pair)]
    return "\n".join([f"{len(zoo)} architectures: {total}.", "", *head, *rows, "", *said])


def in_page() -> str:
    """Return the table as docs/guides/zoo.md has it."""
    return PAGE.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0].strip()


def main(names: list[str]) -> None:
    zoo = {}
    for name in names or ZOO:
        zoo[name] = study(name)
        print(row_of(name, zoo[name]), *reasons(name, zoo[name]), sep="\n", flush=True)
    if names:
        return
    text = PAGE.read_text(encoding="utf-8")
    new = f"{BEGIN}\n{table(zoo)}\n{END}"
    PAGE.write_text(re.sub(f"{BEGIN}.*?{END}", lambda _: new, text, flags=re.DOTALL))


if __name__ == "__main__":
    main(sys.argv[1:])
