"""Compare search replayed from CUDA graphs with the plain search, for every preset."""

import copy
from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import Tensor

from decoding_engines import FIRST_WORD, decoding_graphs, dtype_of
from regard.decoding import DecodingOptions, Hypothesis, decode
from regard.models import PRESETS
from regard.symbols import EOS

#: A prime, by which the bias of the output layer is recognised.
VOCAB: Final = 997
LONGEST: Final = 40
SIZE: Final = "small"
SETTINGS: Final = {"beam": 5, "nbest": 2, "max_len_ratio": 1.0, "max_len_extra": 5}
OPTIONS: Final = DecodingOptions(**SETTINGS)
MAPS: Final = ("cross", "decoder-self", "decoder-history", "memory")
#: Sizes of batches, the last one repeated; graphs pad them to fewer sizes.
BATCHES: Final = (1, 30, 469, 500)
#: The first pass runs eagerly, the second records, and the third only replays.
PASSES: Final = 3
#: Factors of the random weights, and of those of embeddings and output layer: with smaller ones all
#: tokens are nearly alike, and rounding decides.
SHARPER, SHARPER_OUTPUT = 2.0, 8.0
#: Sources, largest bias and halvings of the search for the bias of `eos`.
PILOT, LARGEST_BIAS, HALVINGS = 16, 12.0, 5

#: ids and lengths of a batch
Sources = tuple[Tensor, Tensor]
Answers = list[list[Hypothesis]]


def compare_presets(
    count: int, device: str, presets: list[str] | None = None
) -> Iterator[dict[str, Any]]:
    """Yield for each preset a record for each precision, without TF32."""
    # which cuDNN otherwise uses in float32
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        for preset in presets or PRESETS:
            try:
                yield from compare_preset(preset, count, device)
            except Exception as error:
                first = (str(error).splitlines() or [""])[0]
                yield {"preset": preset, "error": f"{type(error).__name__}: {first}"}


def compare_preset(preset: str, count: int, device: str) -> Iterator[dict[str, Any]]:
    """Yield the differences of both searches in float32 and bf16."""
    model = random_model(preset).to(device)
    batches = [(src.to(device), lengths.to(device)) for src, lengths in random_sources(count)]
    looked = {"need_weights": True, "kinds": MAPS}
    plain = answers(model, batches, **looked)
    yield {
        "preset": preset,
        "precision": "32",
        "sources": count,
        "ended": sum(hypotheses[0].finished for hypotheses in plain),
        **differences(plain, replayed_answers(model, batches)),
        "with_maps": differences(plain, replayed_answers(model, batches, **looked)),
        "moved": differences(plain, answers(moved(model), batches)),
    }
    halved = copy.deepcopy(model).to(dtype_of("bf16"))
    replayed = replayed_answers(halved, batches)
    yield {
        "preset": preset,
        "precision": "bf16",
        "sources": count,
        **differences(answers(halved, batches), replayed),
        "equal_to_32": differences(plain, replayed)["equal"],
    }


def moved(model: Any) -> Any:
    """Return a copy whose weights are moved to the next float above or below, by chance.

    Answers that change with it depend on how sums are rounded, in the plain search as well.
    """
    copied = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in copied.parameters():
            up = torch.rand(weight.shape, generator=generator) < 0.5
            towards = torch.where(up, float("inf"), float("-inf")).to(weight)
            weight.copy_(torch.nextafter(weight, towards))
    return copied


def random_sources(count: int) -> list[Sources]:
    """Return batches of sources of 1 to `LONGEST` tokens."""
    generator = torch.Generator().manual_seed(2)
    sizes, left = list(BATCHES), count
    batches = []
    while left:
        size = min(sizes.pop(0) if len(sizes) > 1 else sizes[0], left)
        ids = torch.randint(FIRST_WORD, VOCAB, (size, LONGEST), generator=generator)
        lengths = torch.randint(1, LONGEST + 1, (size,), generator=generator)
        batches.append((ids, lengths))
        left -= size
    return batches


def random_model(preset: str) -> Any:
    """Return a model of the preset whose answers end by `eos` about as often as by the limit."""
    torch.manual_seed(0)
    model = PRESETS[preset](VOCAB, VOCAB, SIZE).eval()
    bias = None
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.mul_(SHARPER_OUTPUT if weight.shape[0] == VOCAB else SHARPER)
            elif weight.shape == (VOCAB,):
                bias = weight
        if bias is not None:
            _set_ends(model, bias)
    return model


def _set_ends(model: Any, bias: Tensor) -> None:
    """Find by halving the bias of `eos` with which half of a few sources end by it."""
    ids, lengths = random_sources(PILOT)[-1]
    ids, lengths = ids[:, : LONGEST // 4], lengths.clamp(max=LONGEST // 4)
    low, high = 0.0, LARGEST_BIAS
    own = float(bias[EOS])
    for _ in range(HALVINGS):
        bias[EOS] = own + (low + high) / 2
        found = decode(model, ids, lengths, OPTIONS)
        ended = sum(hypotheses[0].finished for hypotheses in found)
        low, high = ((low + high) / 2, high) if 2 * ended < len(found) else (low, (low + high) / 2)


def answers(model: Any, batches: list[Sources], **more: Any) -> Answers:
    """Return the hypotheses of all sources."""
    return [found for batch in batches for found in decode(model, *batch, OPTIONS, **more)]


def replayed_answers(model: Any, batches: list[Sources], **more: Any) -> Answers:
    """Return the same, replayed from the graphs that earlier passes have recorded."""
    graphs = decoding_graphs(model)
    if graphs is None:
        raise ValueError("this checkout of regard has no regard.decoding.graphs")
    for _ in range(PASSES - 1 if graphs.records else 0):
        answers(model, batches, graphs=graphs, **more)
    return answers(model, batches, graphs=graphs, **more)


def differences(plain: Answers, replayed: Answers) -> dict[str, Any]:
    """Return how many sources have equal answers, and the largest differences.

    Scores are compared by rank, answers equal or not, relative to those above 1 in size; maps where
    the answers are equal.
    """
    pairs = list(zip(plain, replayed, strict=True))
    equal = [_tokens(one) == _tokens(other) for one, other in pairs]
    scores, maps = [0.0], []
    for same, (one, other) in zip(equal, pairs, strict=True):
        for a, b in zip(one, other, strict=False):
            scores.append(abs(a.score - b.score) / max(1.0, abs(a.score)))
            if same and b.attention:
                maps.append(_map_difference(a, b))
    found = {"equal": sum(equal), "score_difference": max(scores)}
    return found | ({"map_difference": max(maps), "maps": len(maps)} if maps else {})


def _tokens(hypotheses: list[Hypothesis]) -> list[list[int]]:
    return [hypothesis.tokens for hypothesis in hypotheses]


def _map_difference(one: Hypothesis, other: Hypothesis) -> float:
    if one.attention.keys() != other.attention.keys():
        raise ValueError(f"maps of {sorted(other.attention)}, not {sorted(one.attention)}")
    largest = 0.0
    for kind, layers in one.attention.items():
        for a, b in zip(layers, other.attention[kind], strict=True):
            largest = max(largest, float((a.float() - b.float()).abs().max()) if a.numel() else 0.0)
    return largest
