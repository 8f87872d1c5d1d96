"""The model protocol: the methods and values by which training and decoding use a model."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Final, NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard import masks
from regard.device import can_read_values
from regard.errors import ArgumentError, RegardError
from regard.ops.check import check_axes, check_equal
from regard.preemption import submodules
from regard.state import State

#: Attention weights by kind, one tensor (batch, heads, q_len, kv_len) per layer. The kinds are
#: `cross`, `encoder-self`, `decoder-self`; for self-attentive RNNs `encoder-history`
#: and `decoder-history`; `memory`, whose keys are the slots of an external memory; and `hops`,
#: whose queries are the hops of a memory network.
Maps = dict[str, tuple[Tensor, ...]]

#: Sources: token ids, or vectors or images for a model with an adapter.
Src = (
    Int[Tensor, "batch src_len"]
    | Float[Tensor, "batch frames features"]
    | Float[Tensor, "batch channels height width"]
)

#: Number of real tokens (or vectors) of each source; None if no source is padded.
Lengths = Int[Tensor, " batch"] | None

#: Target token ids, `bos` first.
Tgt = Int[Tensor, "batch tgt_len"]

#: Target positions that are scored: a mask, or their indices, counted through all rows, in order;
#: None for all. A mask makes the host wait, since only the device knows how many are True.
Keep = Bool[Tensor, "batch tgt_len"] | Int[Tensor, " kept"] | None


@dataclass(frozen=True)
class Memory(State):
    """The encoder's output, as decoders see it.

    Attributes:
        output: one vector per source token, or per unit of another source.
        lengths: number of real vectors of each source.
        summary: one vector for the whole source, if the encoder makes one.
        keys: attention keys, if these are not `output`, the values.
        tokens: the source tokens, for decoders that copy them, or the source that a `LinearBag`
            reads; None if it has neither.
        maps: the encoder's attention maps, if asked for.

    Examples:
        >>> memory = regard.models.Memory(torch.randn(2, 3, 5), torch.tensor([3, 1]))
        >>> memory.mask[:, 0, 0]
        tensor([[ True,  True,  True],
                [ True, False, False]])
    """

    output: Float[Tensor, "batch src_len dim"]
    lengths: Int[Tensor, " batch"]
    summary: Float[Tensor, "batch summary_dim"] | None = None
    keys: Float[Tensor, "batch src_len dim"] | None = None
    tokens: Tensor | None = None
    maps: Maps = field(default_factory=dict)

    @property
    def mask(self) -> Bool[Tensor, "batch 1 1 src_len"]:
        """True at real tokens."""
        return masks.padding(self.lengths, self.output.shape[1])


class StepOutput(NamedTuple):
    """One step: logits (batch, tgt_vocab), the state after it, and maps if asked for.

    Examples:
        >>> model = regard.models.PRESETS["transformer"](11, 13, size="tiny").eval()
        >>> state = model.start(model.encode(torch.tensor([[5, 7, 2]]), None))
        >>> logits, state, maps = model.step(torch.tensor([1]), state, need_weights=True)
        >>> logits.shape, sorted(maps)
        (torch.Size([1, 13]), ['cross', 'decoder-self'])
    """

    logits: Tensor
    state: State
    maps: Maps


class ModelOutput(NamedTuple):
    """A whole target: logits (batch, tgt_len, tgt_vocab), or (kept, tgt_vocab) with `keep`.

    Attributes:
        logits: row by row where only some positions are scored.
        maps: if asked for.
        penalty: (batch, tgt_len) or (kept,), added to the loss of each token; None for most models.
        lengths: (batch,), of the memory; None if they are those of the source.
        certain: (batch, tgt_len) or (kept,), True where the model knows the token beforehand, as
            the `eos` after a label. Nothing is learned there, and the training loss is 0.

    Examples:
        >>> model = regard.models.PRESETS["luong"](11, 13, size="tiny")
        >>> out = model(torch.tensor([[5, 2]]), None, torch.tensor([[1, 6]]))
        >>> out.logits.shape, out.maps
        (torch.Size([1, 2, 13]), {})
    """

    logits: Tensor
    maps: Maps
    penalty: Tensor | None = None
    lengths: Tensor | None = None
    certain: Tensor | None = None


class SequenceModel(nn.Module, ABC):
    """A model that turns one sequence into another.

    Its module `encoder`, if it has one, encodes the source. Decoding calls `encode` once, `start`
    once, and `step` for every token; training calls `forward`. All take token ids, batch first; a
    source may be vectors or images where the model has an adapter for them.

    Examples:
        >>> model = regard.models.PRESETS["transformer"](11, 13, size="tiny").eval()
        >>> state = model.start(model.encode(torch.tensor([[5, 7, 2]]), None))
        >>> model.step(torch.tensor([1]), state).logits.shape
        torch.Size([1, 13])
    """

    def encode(self, src: Src, lengths: Lengths, *, need_weights: bool = False) -> Memory:
        """Encode the source. The values of `src` beyond `lengths` do not matter."""
        memory: Memory = cast(nn.Module, self.encoder)(src, lengths, need_weights=need_weights)
        return memory

    @abstractmethod
    def start(self, memory: Memory) -> State:
        """Return the state before the first target token."""

    @abstractmethod
    def step(
        self, tokens: Int[Tensor, " batch"], state: State, *, need_weights: bool = False
    ) -> StepOutput:
        """Read the newest token of each row, first of all `bos`, and score the next one."""

    @abstractmethod
    def forward(
        self, src: Src, lengths: Lengths, tgt: Tgt, *, keep: Keep = None, need_weights: bool = False
    ) -> ModelOutput:
        """Score all next tokens at once, given the right ones before them.

        Args:
            src: source tokens.
            lengths: number of real source tokens of each row; all are real if None.
            tgt: target tokens, `bos` first; the logits at position t are for token t + 1.
            keep: the positions to score, e.g. those that are not padding; all if None.
            need_weights: whether to return the maps.
        """

    @property
    def src_positions(self) -> int | None:
        """Most tokens (or vectors) of a source, `eos` included; None if unlimited."""
        return positions_of(getattr(self, "encoder", None))

    @property
    def tgt_positions(self) -> int | None:
        """Most tokens of a target, `bos` included; None if unlimited."""
        return None

    @property
    def is_compiled(self) -> bool:
        """Return whether steps run by compiled CPU kernels, as the rest of a search then does."""
        return False

    def tgt_lengths(self, memory: Memory) -> Int[Tensor, " batch"] | None:
        """Return the number of tokens of each target, `eos` not counted.

        None, as here, for a model that ends where it chooses. Decoding asks this once.
        """
        return None


def positions_of(module: nn.Module | None) -> int | None:
    """Return the number of learned positions of a module's embedding; None if unlimited."""
    positions = getattr(getattr(module, "embedding", None), "positions", None)
    most: int | None = getattr(positions, "max_len", None)
    return most


class NumberOutput(NamedTuple):
    """Predicted numbers, at the scale of the training data.

    Attributes:
        numbers: (batch, steps, targets, estimates): the point forecast, then each quantile.
        scale: (batch, targets), what a model divides each source by: errors grow with it.
        maps: if asked for.

    Examples:
        >>> out = regard.models.NumberOutput(torch.zeros(2, 3, 1, 5), torch.ones(2, 1), {})
        >>> out.numbers[..., 0].shape  # the point forecasts: (batch, steps, targets)
        torch.Size([2, 3, 1])
    """

    numbers: Tensor
    scale: Tensor
    maps: Maps


class NumberModel(nn.Module, ABC):
    """A model that predicts numbers: a forecast of several steps, or one value of a source.

    Examples:
        >>> issubclass(regard.models.NumberModel, regard.models.SequenceModel)
        False
    """

    @property
    def src_positions(self) -> int | None:
        """The most positions of a source; None if unlimited."""
        return positions_of(getattr(self, "encoder", None))

    @abstractmethod
    def forward(
        self,
        src: Src,
        lengths: Lengths,
        tgt: Float[Tensor, "batch steps targets"] | None = None,
        *,
        need_weights: bool = False,
    ) -> NumberOutput:
        """Predict.

        Args:
            src: the sources.
            lengths: number of real positions of each source; all are real if None.
            tgt: the right numbers, which a model that writes step by step reads in training; it
                reads its own if None. NaN where there is none.
            need_weights: whether to return the maps.
        """


#: what a kind of data builds
AnyModel = SequenceModel | NumberModel


def require_sequence_model(model: nn.Module, what: str) -> SequenceModel:
    """Return a model that writes tokens; raises RegardError for one that predicts numbers."""
    if isinstance(model, SequenceModel):
        return model
    raise RegardError(
        f"{what} must have a model that writes tokens, but this run predicts numbers: use `regard "
        f"predict`, `regard evaluate` or `regard show` with it."
    )


#: modules that were in training mode, and the number of `evaluating` blocks that they are in
_evaluated: Final[dict[nn.Module, int]] = {}
_evaluated_lock: Final = Lock()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode, and each of its modules back as it was.

    Several threads may run one model, or models that share modules: these return to training mode
    when the last block has been left.
    """
    with _evaluated_lock:
        mine = [module for module in submodules(model) if module.training or module in _evaluated]
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


@contextmanager
def inference(model: nn.Module) -> Iterator[None]:
    """Run without gradients and without dropout, and leave the model as it was."""
    with evaluating(model), torch.no_grad():
        yield


def is_encoder_map(kind: str) -> bool:
    """Return whether maps of this kind are the encoder's, shared by all targets of a source."""
    return kind.startswith("encoder-") or kind == "hops"


def select_positions(x: Tensor, keep: Keep) -> Tensor:
    """Return (kept, ...), row by row, of (batch, tgt_len, ...); all of `x` if `keep` is None."""
    if keep is None:
        return x
    if keep.dtype == torch.bool:
        return x[keep]
    return x.flatten(0, 1).index_select(0, keep)


def real_lengths(src: Tensor, lengths: Tensor | None) -> Tensor:
    """Return the lengths, or the second axis of `src` for every row if they are None."""
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
    """Raises unless there is one length for each source; adapters check vectors further."""
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
    """Raises unless there is a length for each of the rows, from 0 to `most`."""
    check_axes("lengths", lengths, "batch")
    check_equal("agree in batch", src=rows, lengths=lengths.shape[0])
    if lengths.is_floating_point() or lengths.dtype == torch.bool:
        raise ArgumentError(
            "lengths", "hold integers", lengths.dtype, "convert it with .long(), or sum a mask"
        )
    if not can_read_values(lengths) or lengths.numel() == 0:
        return
    read = lengths.tolist()
    if min(read) < 0:
        raise ArgumentError("lengths", "be at least 0", min(read), f"count real {unit} alone")
    if max(read) > most:
        raise ArgumentError(
            "lengths",
            f"be at most the {most} {unit} of a row",
            max(read),
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
