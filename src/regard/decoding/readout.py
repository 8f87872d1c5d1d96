"""From the tensors of a search to hypotheses."""

from collections.abc import Collection

from jaxtyping import Float
from torch import Tensor

from regard.decoding.hypothesis import Hypothesis
from regard.decoding.running import of_encoder
from regard.decoding.trace import Ended, Trace
from regard.errors import RegardError
from regard.models.protocol import Maps, Memory


def read_out(trace: Trace, ended: Ended, memory: Memory) -> list[list[Hypothesis]]:
    """The hypotheses of each source, best first."""
    real = ended.scores[..., 0] > float("-inf")  # and not NaN
    if not bool(real[:, 0].all()):
        raise RegardError(
            "The model gives no target a probability, since its logits are NaN or forbid them all: "
            "check that its training did not diverge."
        )
    source = ended.source[:, None].expand_as(real)[real]
    scores, places = ended.scores[real], ended.places[real]
    paths = trace.read(places[:, 0], places[:, 1])
    maps, own = on_cpu(paths.maps, trace.kinds), on_cpu(memory.maps, trace.kinds)
    lengths = memory.lengths.tolist()
    found: list[list[Hypothesis]] = [[] for _ in lengths]
    tensors = (source, scores, places, paths.tokens, paths.log_probs)
    rows = zip(*(tensor.tolist() for tensor in tensors), strict=True)
    for i, (row, (score, log_prob, last), (step, _, cut), tokens, terms) in enumerate(rows):
        size = (step + 1, lengths[row])
        found[row].append(
            Hypothesis(
                tokens=tokens[:step],
                score=score,
                log_prob=log_prob,
                token_log_probs=[*terms[:step], last],
                attention=attention(own, row, *size) | attention(maps, i, *size),
                finished=not cut,
            )
        )
    for several in found:
        several.sort(key=lambda hypothesis: -hypothesis.score)
    return found


def on_cpu(maps: Maps, kinds: Collection[str]) -> Maps:
    """The maps of these kinds, brought over in one piece each."""
    return {kind: tuple(m.cpu() for m in maps[kind]) for kind in kinds if kind in maps}


def attention(maps: Maps, i: int, tgt_len: int, src_len: int) -> Maps:
    """The maps of row i, without what padding has in them.

    Args:
        maps: a row for each hypothesis, or each source.
        i: which row.
        tgt_len: steps of the hypothesis, the one that wrote `eos` included.
        src_len: real tokens of its source.
    """
    return {
        kind: tuple(_corner(layer[i], *_sizes(kind, tgt_len, src_len)) for layer in layers)
        for kind, layers in maps.items()
    }


def _sizes(kind: str, tgt_len: int, src_len: int) -> tuple[int, int | None]:
    """The real rows and columns of a map; None for all of them."""
    if of_encoder(kind):
        return src_len, src_len
    columns = {"cross": src_len, "memory": None}  # all slots of a memory are real
    return tgt_len, columns.get(kind, tgt_len)


def _corner(
    weights: Float[Tensor, "heads q_len kv_len"], rows: int, columns: int | None
) -> Float[Tensor, "heads rows columns"]:
    """A copy, so that a hypothesis does not hold the maps of its whole batch in memory."""
    return weights[:, :rows, :columns].clone()
