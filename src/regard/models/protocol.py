"""What decoding and training know of a model: four verbs and the values they exchange."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Final, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard import masks
from regard.device import can_read_values
from regard.errors import ArgumentError
from regard.ops.check import check_axes, check_equal
from regard.state import State

#: Weights by kind, one tensor (batch, heads, q_len, kv_len) per layer. The kinds are `cross`,
#: `encoder-self`, `decoder-self`, for self-attentive RNNs `encoder-history`, `decoder-history` and,
#: of what reads from the end, `encoder-future`; and `memory`, whose keys are the slots of an
#: external memory.
Maps = dict[str, tuple[Tensor, ...]]

#: What sources are made of: token ids, and where a model has an adapter for them vectors or images.
Src = (
    Int[Tensor, "batch src_len"]
    | Float[Tensor, "batch frames features"]
    | Float[Tensor, "batch channels height width"]
)

#: How much of each source is real; None where no source is padded.
Lengths = Int[Tensor, " batch"] | None

#: Which positions of a target are scored: a mask; or their places, counted through all rows and in
#: order. How many a mask keeps must be asked of the device, which would be waited for.
Keep = Bool[Tensor, "batch tgt_len"] | Int[Tensor, " kept"]


@dataclass(frozen=True)
class Memory(State):
    """What an encoder leaves to a decoder.

    Attributes:
        output: one vector per source token, or whatever else the source is made of.
        lengths: number of real ones among them, for each source.
        summary: the whole source in one vector, if the encoder makes one.
        keys: what is looked at, if that is not `output`, which is what is mixed.
        tokens: the source itself, for decoders that copy from it; None if it has no tokens.
        maps: where the encoder looked, if asked for.
    """

    output: Float[Tensor, "batch src_len dim"]
    lengths: Int[Tensor, " batch"]
    summary: Float[Tensor, "batch summary_dim"] | None = None
    keys: Float[Tensor, "batch src_len dim"] | None = None
    tokens: Int[Tensor, "batch src_len"] | None = None
    maps: Maps = field(default_factory=dict)

    @property
    def mask(self) -> Bool[Tensor, "batch 1 1 src_len"]:
        """True at real tokens."""
        return masks.padding(self.lengths, self.output.shape[1])


class StepOutput(NamedTuple):
    """One step: logits (batch, tgt_vocab), the state after it, where it looked if asked for."""

    logits: Tensor
    state: State
    maps: Maps


class ModelOutput(NamedTuple):
    """A whole target: logits (batch, tgt_len, tgt_vocab), and where the model looked.

    A model may ask for more than right tokens: `penalty`, (batch, tgt_len), is then what training
    adds to the loss of each. Where only some positions were kept, the logits are (kept, tgt_vocab)
    and the penalty is (kept,), row by row. `lengths`, (batch,), are those of the memory, where they
    may be others than those of the source.
    """

    logits: Tensor
    maps: Maps
    penalty: Tensor | None = None
    lengths: Tensor | None = None


class SequenceModel(nn.Module, ABC):
    """A model that turns one sequence into another.

    Decoding calls `encode` once, `start` once, and `step` for every token; training calls
    `forward`. All take token ids, batch first; a source may be made of vectors or be an image where
    the model has an adapter for it.
    """

    @abstractmethod
    def encode(
        self,
        src: Src,
        lengths: Lengths,
        *,
        need_weights: bool = False,
    ) -> Memory:
        """Reads the source. What `src` holds beyond `lengths` does not matter."""

    @abstractmethod
    def start(self, memory: Memory) -> State:
        """The state before the first target token."""

    @property
    def src_positions(self) -> int | None:
        """How many tokens (or vectors) a source may have, `eos` among them; None if any number."""
        return None

    @property
    def tgt_positions(self) -> int | None:
        """How many tokens of a target, `bos` first, the model can take; None if any number."""
        return None

    def tgt_lengths(self, memory: Memory) -> Int[Tensor, " batch"] | None:
        """How many tokens the target of each source has, `eos` not counted.

        None, as here, for a model that ends where it wants. Decoding asks this once.
        """
        return None

    @abstractmethod
    def step(
        self, tokens: Int[Tensor, " batch"], state: State, *, need_weights: bool = False
    ) -> StepOutput:
        """Takes the newest token of each row, first of all `bos`, and scores the next one."""

    @abstractmethod
    def forward(
        self,
        src: Src,
        lengths: Lengths,
        tgt: Int[Tensor, "batch tgt_len"],
        *,
        keep: Keep | None = None,
        need_weights: bool = False,
    ) -> ModelOutput:
        """Scores all next tokens at once, given the right ones before them.

        Args:
            src: source tokens.
            lengths: number of real source tokens of each row; all are real if None.
            tgt: target tokens, `bos` first; the logits at position t are for token t + 1.
            keep: the positions to score, e.g. those that are not padding, as a mask or by their
                places, see `Keep`; the logits are then (kept, tgt_vocab), row by row.
            need_weights: whether to return the maps.
        """


#: modules that were in training mode, and how many blocks of `evaluating` they are in
_evaluated: Final[dict[nn.Module, int]] = {}
_evaluated_lock: Final = Lock()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode, and each of its modules back as it was.

    Several threads may run one model, or models that share modules: these return to training mode
    when the last block has been left.
    """
    with _evaluated_lock:
        mine = [module for module in model.modules() if module.training or module in _evaluated]
        for module in mine:
            _evaluated[module] = _evaluated.get(module, 0) + 1
            module.training = False
    try:
        yield
    finally:
        with _evaluated_lock:
            for module in mine:
                _evaluated[module] -= 1
                if not _evaluated[module]:
                    del _evaluated[module]
                    module.training = True


def real_lengths(src: Tensor, lengths: Tensor | None) -> Tensor:
    """The lengths; the second axis of `src` for every row where there are none."""
    if lengths is not None:
        return lengths
    return torch.full(src.shape[:1], src.shape[1], dtype=torch.long, device=src.device)


def check_tensors(**values: object) -> None:
    """Raises unless every value is a tensor, or None."""
    for name, value in values.items():
        if not isinstance(value, Tensor | None):
            raise ArgumentError(
                name, "be a tensor", f"a {type(value).__name__}", "convert it with torch.as_tensor"
            )


def check_batch(src: Tensor, lengths: Tensor | None) -> None:
    """Raises unless there is one length for each source; the rest of vectors is their adapter's."""
    check_tensors(src=src, lengths=lengths)
    if not src.is_floating_point():
        check_source(src, lengths)
    elif lengths is not None:
        check_axes("lengths", lengths, "batch")
        check_equal("agree in batch", src=src.shape[0], lengths=lengths.shape[0])


def check_source(src: Tensor, lengths: Tensor | None) -> None:
    """Raises unless there is one length for each row of ids, none beyond the row's end."""
    check_axes("src", src, "batch src_len")
    if lengths is not None:
        check_lengths(lengths, src.shape[0], src.shape[1])


def check_lengths(lengths: Tensor, rows: int, most: int, unit: str = "tokens") -> None:
    """Raises unless there is a length for each of the rows, and none of them is too large."""
    check_axes("lengths", lengths, "batch")
    check_equal("agree in batch", src=rows, lengths=lengths.shape[0])
    if can_read_values(lengths) and int(lengths.max()) > most:
        raise ArgumentError(
            "lengths",
            f"be at most the {most} {unit} of a row",
            int(lengths.max()),
            f"count real {unit} alone, and pad src to the longest row",
        )


def check_tokens(name: str, tokens: Tensor, vocab: int) -> None:
    """Raises unless `tokens` are ids of a vocabulary with `vocab` entries."""
    if tokens.is_floating_point() or tokens.dtype == torch.bool:
        raise ArgumentError(name, "hold integer token ids", tokens.dtype, "convert it with .long()")
    if not can_read_values(tokens) or tokens.numel() == 0:
        return
    low, high = int(tokens.min()), int(tokens.max())
    if low < 0 or high >= vocab:
        raise ArgumentError(
            name,
            f"hold ids from 0 to {vocab - 1}, the entries of the vocabulary",
            f"from {low} to {high}",
            "check that the tokeniser is the one that the model was made for",
        )


@contextmanager
def inference(model: nn.Module) -> Iterator[None]:
    """Without gradients and without dropout; the model is given back as it was."""
    with evaluating(model), torch.no_grad():
        yield


def is_encoder_map(kind: str) -> bool:
    """Whether maps of this kind come from the encoder, one for all hypotheses of a source."""
    return kind.startswith("encoder-")


def select_positions(x: Tensor, keep: Keep) -> Tensor:
    """What (batch, tgt_len, ...) holds at these positions, (kept, ...), row by row."""
    if keep.dtype == torch.bool:
        return x[keep]
    return x.flatten(0, 1).index_select(0, keep)
