"""The passes over the data: what each pair looks like in a pass, and which go together."""

from typing import NamedTuple, final

from regard.data import (
    Batches,
    BatchPlan,
    BPEDropout,
    Corpus,
    EncodedPairs,
    Resegmenter,
    SourceEncoder,
    Tokenizer,
    require_tokenizer,
)
from regard.training.checks import no_bpe
from regard.training.config import Config
from regard.training.shapes import Shapes


class Epoch(NamedTuple):
    """One pass."""

    pairs: EncodedPairs
    batches: Batches


@final
class Epochs:
    """The passes of a run, each a function of its number and the seed.

    Args:
        config: says how large batches are.
        corpus: the training pairs.
        recutter: cuts them anew for each pass; None leaves them as they are.
        shapes: what batches are to be padded to, if to more than their longest pairs.
    """

    def __init__(
        self,
        config: Config,
        corpus: Corpus,
        recutter: Resegmenter | None = None,
        shapes: Shapes | None = None,
    ) -> None:
        self._config, self._corpus, self._recutter = config, corpus, recutter
        self.shapes = shapes
        self._last: tuple[int, Epoch] | None = None

    def __getitem__(self, number: int) -> Epoch:
        """A pass, counted from 0; the last one is kept, since planning sorts the whole corpus."""
        if self._last is None or self._last[0] != number:
            pairs = self._corpus if self._recutter is None else self._recutter.epoch(number)
            self._last = (number, Epoch(pairs, self._plan(pairs).epoch(number)))
        return self._last[1]

    def _plan(self, pairs: EncodedPairs) -> BatchPlan:
        config = self._config
        lengths = (pairs.src_lengths, pairs.tgt_lengths + 1)
        if self.shapes is not None:
            lengths = (self.shapes.src_lengths(pairs), self.shapes.tgt_lengths(pairs) - 1)
        return BatchPlan(
            *lengths,
            max_tokens=config.max_tokens,
            max_sentences=config.batch_sentences,
            seed=config.seed,
        )


def make_recutter(
    config: Config, corpus: Corpus, src: SourceEncoder, tgt: Tokenizer
) -> Resegmenter | None:
    """What cuts the sides that are cut by bpe anew for each pass, if it is asked for."""
    if not config.bpe_dropout:
        return None
    if "bpe" not in (src.kind, tgt.kind):
        raise no_bpe(config, src.kind, tgt.kind)
    texts = (require_tokenizer(src, "bpe_dropout"), tgt)
    sides = (BPEDropout(t, config.bpe_dropout) if t.kind == "bpe" else None for t in texts)
    return Resegmenter(
        corpus,
        *sides,
        max_src_len=config.max_src_len,
        max_tgt_len=config.longest_tgt,
        seed=config.seed,
    )
