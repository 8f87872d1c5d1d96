"""Targets that are numbers: their names, and the scale at which a model predicts them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

import numpy as np
from jaxtyping import Float32, Int, Int32
from pydantic import Field

from regard.data.batches import Batch, BatchShape, number_batch
from regard.data.checksummed_json import Positive, StoredRecord, read_checksummed
from regard.data.corpus import Corpus, FrameRows, Ids
from regard.data.tokenizers import Tokenizer
from regard.errors import RegardError
from regard.messages import message
from regard.safe_read import PathLike

#: a file of targets that is read: names and two numbers of each
MOST_TARGETS: Final = 100_000


@dataclass(frozen=True)
class NumberTargets(StoredRecord):
    """The encoder of targets that are numbers: standardises each of them.

    Attributes:
        names: of the numbers that a model predicts at once.
        mean: mean of each over the training data.
        scale: standard deviation of each.
    """

    kind: ClassVar[str] = "numbers"
    #: a corpus stores a number as the 32 bits of a float, for which two bytes are too few
    vocab_size: ClassVar[int] = 1 << 31

    names: Annotated[tuple[str, ...], Field(min_length=1, max_length=MOST_TARGETS)]
    mean: tuple[float, ...]
    scale: tuple[Positive, ...]

    @property
    def summary(self) -> str:
        """A short description."""
        count = len(self.names)
        shown = message("check.comma").join([*self.names[:3], *(["..."] if count > 3 else [])])
        return message(f"target.{'number' if count == 1 else 'numbers'}", count=count, names=shown)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the standardised number of each text as bits, or 0 for a text without one."""
        numbers = np.array([float(text or 0) for text in texts], np.float64)
        scaled = ((numbers - self.mean[0]) / self.scale[0]).astype(np.float32)
        return [[bits] for bits in scaled.view(np.int32).tolist()]

    @staticmethod
    def decode_bits(bits: Int32[np.ndarray, " numbers"]) -> Float32[np.ndarray, " numbers"]:
        """Return the standardised numbers that a corpus stores."""
        return np.ascontiguousarray(bits, np.int32).view(np.float32)

    def check_fields(self) -> None:
        """Raise ValueError unless there are a mean and a scale for each number."""
        whole = len(self.names) == len(self.mean) == len(self.scale)
        if not whole:
            raise ValueError(f"mean and scale must have {len(self.names)} numbers each")


class NumberRows:
    """The pairs of a corpus whose targets are numbers, one for each source.

    Args:
        corpus: encoded with `NumberTargets`.
    """

    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus

    def __len__(self) -> int:
        return len(self.corpus)

    @property
    def src_lengths(self) -> Int32[np.ndarray, " pairs"]:
        """Number of source tokens of each pair, eos among them; or of frames."""
        return self.corpus.src_lengths

    @property
    def tgt_lengths(self) -> Int32[np.ndarray, " pairs"]:
        """Zeros: the loss of a pair has one term more than this, that of its number."""
        return np.zeros_like(self.corpus.tgt_lengths)

    def gather(self, side: str, rows: Int[np.ndarray, " rows"]) -> Ids | FrameRows:
        """Return the sources or the bits of the numbers of some pairs, see `Corpus.gather`."""
        return self.corpus.gather(side, rows)

    def batch(self, rows: Int[np.ndarray, " batch"], shape: BatchShape | None = None) -> Batch:
        """Return pairs as a batch; rows that fill it up to a shape have no targets."""
        src, lengths = self.corpus.gather("src", rows).padded(shape.src_len if shape else 0)
        bits, _ = self.corpus.ids("tgt", rows).padded(1)
        numbers = NumberTargets.decode_bits(bits[:, 0].astype(np.int32))[:, None, None]
        more = 0 if shape is None else max(0, shape.rows - len(rows))
        src, lengths, numbers = (
            np.concatenate([side, np.repeat(side[:1], more, axis=0)])
            for side in (src, lengths, numbers)
        )
        return number_batch(src, lengths, numbers, rows)


#: what a run knows of its targets: how text is cut, or the scale of numbers
TargetEncoder = Tokenizer | NumberTargets


def load_target(path: PathLike) -> TargetEncoder:
    """Load the encoder of a run's targets; raises DataError if the file is damaged."""
    content = read_checksummed(path)
    if content.get("kind") == NumberTargets.kind:
        return NumberTargets.from_json(path, content)
    return Tokenizer.from_json(path, content)


def require_text_target(target: TargetEncoder, what: str) -> Tokenizer:
    """Return the tokeniser of text targets; raises RegardError for numbers.

    Args:
        target: the target encoder of a run.
        what: what needs targets of text, worded to go before "must".
    """
    if isinstance(target, Tokenizer):
        return target
    raise RegardError(
        f"{what} must have a target of text, but this run predicts {target.summary}: use `regard "
        f"predict`, `regard evaluate` or `regard show` with it."
    )
