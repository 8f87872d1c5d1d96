"""Input scorers: one input of a model, and its outputs, as attribution methods see them.

An attribution method needs few things of a model: logits of its outputs when some inputs are
replaced, logits as a differentiable function of the vectors of the inputs, and its attention. A
scorer offers these for one model and one input; every method is then written once, for all models.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, final

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.data.frame_tables import FrameArray
from regard.errors import ArgumentError, RegardError
from regard.messages import message
from regard.models.adapters import InputAdapter
from regard.models.embedding import TokenEmbedding
from regard.models.protocol import Maps, SequenceModel, evaluating
from regard.ops.primitives import log_softmax
from regard.preemption import in_turn, is_preemptible, preemptible
from regard.symbols import BOS, EOS

#: input of a model: token ids, or a table of frames
Source = Sequence[int] | FrameArray
#: takes a source and the replacements of some positions; returns the changed source
Put = Callable[[Any, Mapping[int, int]], Any]

#: replacements of frames that are tried in all, but at least `FEWEST` for each position
TRIED: Final = 2048
FEWEST: Final = 4


class Replacements(NamedTuple):
    """Possible replacements of each position of a source.

    Attributes:
        others: for each position, the numbers of its replacements.
        put: puts replacements into some positions.
        notes: remarks for the reader.
    """

    others: Sequence[Sequence[int]]
    put: Put
    notes: tuple[str, ...] = ()


def token_replacements(src: Sequence[int], others: Sequence[Sequence[int]]) -> Replacements:
    """Replace tokens by other tokens."""
    if len(others) != len(src) or not all(map(len, others)):
        raise ArgumentError(
            "others",
            f"have one token or more for each of the {len(src)} of the source",
            f"of lengths {list(map(len, others))}",
            "pass the ids of the vocabulary for each",
        )

    def put(tokens: Sequence[int], change: Mapping[int, int]) -> list[int]:
        return [change.get(place, token) for place, token in enumerate(tokens)]

    return Replacements(others, put)


def frame_replacements(table: FrameArray, stack: int) -> Replacements:
    """Replace frames by other frames of the same source, as many at once as are stacked.

    There is no vocabulary to draw from as for text. Frames from elsewhere in the source are as
    likely as the source itself, whereas training has hardly seen a frame of zeros, or one drawn
    number by number. A position without alternatives keeps its frames. In a long source, which has
    many positions, fewer replacements of each are tried, drawn at random.
    """
    starts = range(0, len(table), stack)
    rng, count = np.random.default_rng(0), max(FEWEST, TRIED // len(starts))
    others = []
    for start in starts:
        size = min(stack, len(table) - start)
        # starts that leave room for as many frames, less its own; not listed, they may be many
        room, own = (len(table) - size) // stack + 1, start // stack
        able = room - (own < room)
        drawn = rng.choice(able, count, replace=False) if able > count else range(able)
        others.append([stack * int(i + (i >= own)) for i in drawn] or [start])
    joined = "" if stack == 1 else message("check.unknown.joined", stack=stack)
    note = message("check.unknown.frames", joined=joined)
    return Replacements(others, partial(_put_frames, stack), (note,))


def patch_replacements(patches: FrameArray) -> Replacements:
    """Replace patches of a picture by other patches of it, as `frame_replacements` does."""
    note = message("check.unknown.patches")
    return frame_replacements(patches, 1)._replace(notes=(note,))


def _put_frames(stack: int, table: FrameArray, change: Mapping[int, int]) -> FrameArray:
    changed = table.copy()
    for place, other in change.items():
        start = place * stack
        size = min(stack, len(table) - start)
        changed[start : start + size] = table[other : other + size]
    return changed


Array = npt.NDArray[Any]


#: modules, each with a hook
Hooks = Iterable[tuple[nn.Module, Callable[..., Any]]]


@contextmanager
def hooked(before: Hooks = (), after: Hooks = (), *, always: bool = False) -> Iterator[None]:
    """Call hooks of modules inside the block, for the thread of the block alone."""
    thread = threading.get_ident()

    def own(call: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args: call(*args) if threading.get_ident() == thread else None

    with ExitStack() as stack:
        for module, call in before:
            stack.callback(module.register_forward_pre_hook(own(call)).remove)
        for module, call in after:
            handle = module.register_forward_hook(own(call), always_call=always)
            stack.callback(handle.remove)
        yield


#: a replacement for each of some positions
Change = Mapping[int, int]

#: tokens of inputs and outputs that are scored at once
TOKENS: Final = 16_384
#: the same where other work is let in between two batches
PIECE_TOKENS: Final = 2_048


class MethodUnavailableError(RegardError):
    """An attribution method cannot be applied to this model or question."""


class Question(NamedTuple):
    """The question why a model wrote a token, or, with `versus`, why not that one instead.

    Attributes:
        output: number of the output, from 0.
        token: id of the token.
        versus: id of the token that it is compared with; None for all others.
    """

    output: int
    token: int
    versus: int | None = None


@dataclass(frozen=True)
class AttentionRecord:
    """Attention weights of one forward pass.

    Attributes:
        cross: (heads, outputs, inputs) of each layer that attends from outputs to inputs.
        own: (heads, inputs, inputs) of each layer of self-attention over the inputs.
        rows: for each output, the row of `own` that it is predicted from, or several, which are
            averaged; empty if `cross` is not.
    """

    cross: Sequence[Array]
    own: Sequence[Array]
    rows: Sequence[int | Sequence[int]]

    def at_outputs(self, layer: Float[np.ndarray, "*heads inputs inputs"]) -> Array:
        """Return the rows of a layer of `own` that each output is predicted from."""
        found = [layer[..., np.atleast_1d(rows), :].mean(axis=-2) for rows in self.rows]
        return np.stack(found, axis=-2)


def values(
    logits: Float[Tensor, "batch outputs vocab"], questions: Sequence[Question]
) -> Float[Tensor, "batch questions"]:
    """Return what each question asks about.

    That is the log-probability of the token, or the difference of its logit and that of `versus`,
    which is the difference of their log-probabilities.
    """
    outputs, tokens, versus, contrasted = _columns(logits, questions)
    log_probs = log_softmax(logits)
    return log_probs[:, outputs, tokens] - contrasted * log_probs[:, outputs, versus]


def row_values(
    logits: Float[Tensor, "questions outputs vocab"], questions: Sequence[Question]
) -> Float[Tensor, " questions"]:
    """Return what question q asks about, see `values`, in row q."""
    outputs, tokens, versus, contrasted = _columns(logits, questions)
    rows = torch.arange(len(questions), device=logits.device)
    total = logits[rows, outputs].logsumexp(dim=-1)
    found = logits[rows, outputs, tokens] - contrasted * logits[rows, outputs, versus]
    return found - (1 - contrasted) * total


def _columns(logits: Tensor, questions: Sequence[Question]) -> tuple[Tensor, ...]:
    """Return output, token and other token of each question, and 1 where there is another."""
    columns = [
        (q.output, q.token, 0 if q.versus is None else q.versus, int(q.versus is not None))
        for q in questions
    ]
    outputs, tokens, versus, contrasted = torch.tensor(columns, device=logits.device).T
    return outputs, tokens, versus, contrasted.to(logits.dtype)


#: takes a module that reads the input, what it reads, its output, and the first position of these
_PartOfOutput = Callable[[nn.Module, Tensor, Tensor, int], Tensor]


class InputScorer(ABC):
    """One input of a model, and its outputs.

    Attributes:
        model: run without dropout, and left as it was.
        source: what it reads: `logits` and `replaced_logits` make batches of it.
        replacements: what may stand at each position in place of the input.
        written: the token of each output.
        inputs: number of inputs.
    """

    written: Sequence[int]

    def __init__(self, model: SequenceModel, source: Source, replacements: Replacements) -> None:
        self.model, self.source, self.replacements = model, source, replacements
        self.inputs = len(replacements.others)

    def questions(self, versus: int | None = None) -> list[Question]:
        """Return one question for each output."""
        return [Question(t, token, versus) for t, token in enumerate(self.written)]

    def visible(self) -> Bool[np.ndarray, "outputs inputs"]:
        """Return which inputs each output can depend on."""
        return np.ones((len(self.written), self.inputs), dtype=bool)

    @abstractmethod
    def attention(self) -> AttentionRecord:
        """Return the attention of one pass; raises MethodUnavailableError if there is none."""

    @abstractmethod
    def _run(self, batch: Tensor, *, need_weights: bool = False) -> tuple[Tensor, Maps]:
        """Return the logits of the outputs and the maps."""

    def _layers(self) -> dict[str, list[Array]]:
        """Return the weights of each layer, by kind of map."""
        with evaluating(self.model), torch.no_grad():
            maps = self._run(self._batch([self.source]), need_weights=True)[1]
        return {
            kind: [layer[0].double().cpu().numpy() for layer in layers]
            for kind, layers in maps.items()
        }

    def _batch(self, sources: Sequence[Source]) -> Tensor:
        weight = next(self.model.parameters())
        rows = torch.from_numpy(np.stack(sources))
        return rows.to(weight.device, weight.dtype if rows.is_floating_point() else torch.int64)

    def vectors(self) -> Float[Tensor, "inputs dim"]:
        """Return the outputs of embeddings or adapters; those of an ensemble side by side."""
        return self._collect(lambda module, batch, output, first: output)

    def baseline(self) -> Float[Tensor, "inputs dim"]:
        """Return the mean vector of the replacements; of frames, the mean over the source."""

        def mean(module: nn.Module, batch: Tensor, output: Tensor, first: int) -> Tensor:
            if not isinstance(module, TokenEmbedding):
                return output.mean(dim=1, keepdim=True).expand_as(output)
            means = mean_vectors(module.table.weight * module.scale, self.replacements.others)
            own = means[first : first + output.shape[1]]
            moved: Tensor = output - module.table(batch) * module.scale + own
            return moved

        return self._collect(mean)

    def _collect(self, part: _PartOfOutput) -> Float[Tensor, "inputs dim"]:
        """Return `part` of what each embedding or adapter makes of the input, side by side."""
        batch, found = self._batch([self.source]), list[list[Tensor]]()

        def keep(module: nn.Module, read: Tensor, output: Tensor, first: int) -> None:
            if first == 0:
                found.append([])
            found[-1].append(part(module, read, output, first)[0])

        with evaluating(self.model), torch.no_grad(), _reading(self.model, batch, keep):
            self._run(batch)
        if not found:
            raise RegardError(
                "a model must have regard's own layers to be checked, but it is one of "
                "transformers with an adapter: `regard export RUN --to transformers`, and check "
                "that."
            )
        return torch.cat([torch.cat(parts) for parts in found], dim=-1)

    def logits(
        self, vectors: Float[Tensor, "batch inputs dim"]
    ) -> Float[Tensor, "batch outputs vocab"]:
        """Score the outputs with `vectors` in place of the outputs of embeddings or adapters."""
        batch, end = self._batch([self.source] * len(vectors)), 0

        def substitute(module: nn.Module, read: Tensor, output: Tensor, first: int) -> Tensor:
            nonlocal end
            end += output.shape[-1] if first == 0 else 0
            places = slice(first, first + output.shape[1])
            return vectors[:, places, end - output.shape[-1] : end]

        with _without_cudnn(batch), _reading(self.model, batch, substitute):
            return self._run(batch)[0]

    def replaced_logits(self, changes: Sequence[Change]) -> Float[Tensor, "batch outputs vocab"]:
        """Score the outputs of changed sources."""
        put = self.replacements.put
        return self._run(self._batch([put(self.source, change) for change in changes]))[0]

    def replaced(
        self, changes: Sequence[Change], questions: Sequence[Question]
    ) -> Float[np.ndarray, "changes questions"]:
        """Return the value of each question, see `values`, after each change."""
        found, size = [np.empty((0, len(questions)))], self.rows_at_once
        with evaluating(self.model), torch.no_grad():
            for start in in_turn(range(0, len(changes), size)):
                logits = self.replaced_logits(changes[start : start + size])
                found.append(values(logits, questions).double().cpu().numpy())
        return np.concatenate(found)

    @property
    def rows_at_once(self) -> int:
        """Number of rows of a batch; fewer while others wait."""
        tokens = PIECE_TOKENS if is_preemptible() else TOKENS
        return max(1, tokens // (self.inputs + len(self.written)))


@final
class SourceScorer(InputScorer):
    """Inputs are those of a source: token ids with `eos` last, or positions made of frames."""

    def __init__(
        self, model: SequenceModel, src: Source, tgt: Sequence[int], replacements: Replacements
    ) -> None:
        super().__init__(model, src, replacements)
        self.written = [*tgt, EOS]

    def _run(self, batch: Tensor, *, need_weights: bool = False) -> tuple[Tensor, Maps]:
        lengths = torch.full((len(batch),), batch.shape[1], device=batch.device)
        read = torch.tensor([[BOS, *self.written[:-1]]], device=batch.device)
        out = self.model(batch, lengths, read.expand(len(batch), -1), need_weights=need_weights)
        return out.logits, out.maps

    def attention(self) -> AttentionRecord:
        """Return cross-attention and the encoder's self-attention, which taggers alone have."""
        maps = self._layers()
        cross, own = maps.get("cross", []), maps.get("encoder-self", [])
        if not cross and not own:
            raise MethodUnavailableError(message("check.why.no-attention"))
        rows = [] if cross else [min(t, self.inputs - 1) for t in range(len(self.written))]
        return AttentionRecord(cross, own, rows)


@final
class PrefixScorer(InputScorer):
    """Inputs are the tokens that a language model has read, `bos` first."""

    def __init__(
        self,
        model: SequenceModel,
        read: Sequence[int],
        written: Sequence[int],
        replacements: Replacements,
    ) -> None:
        super().__init__(model, read, replacements)
        self.written = list(written)
        self.first = len(read) - len(written)

    def visible(self) -> Bool[np.ndarray, "outputs inputs"]:
        """Return the inputs before each output."""
        return np.tri(len(self.written), self.inputs, self.first, dtype=bool)

    def _run(self, batch: Tensor, *, need_weights: bool = False) -> tuple[Tensor, Maps]:
        # the protocol asks for a source, which a language model does not read
        src = torch.full((len(batch), 1), EOS, device=batch.device)
        out = self.model(src, None, batch, need_weights=need_weights)
        return out.logits[:, self.first :], out.maps

    def attention(self) -> AttentionRecord:
        """Return self-attention; of a self-attentive RNN, that to its history."""
        maps = self._layers()
        own = maps.get("decoder-self") or maps.get("decoder-history")
        if not own:
            raise MethodUnavailableError(message("check.why.no-attention"))
        return AttentionRecord([], own, range(self.first, self.inputs))


def mean_vectors(
    table: Float[Tensor, "vocab dim"], choices: Sequence[Sequence[int]]
) -> Float[Tensor, "positions dim"]:
    """Return the mean vector of several choices of tokens; most positions have the same choice."""
    means: dict[Any, Tensor] = {}
    keys = [ids if isinstance(ids, range) else tuple(ids) for ids in choices]
    for key in keys:
        if key not in means:
            means[key] = table[torch.tensor(list(key), device=table.device)].mean(dim=0)
    return torch.stack([means[key] for key in keys])


@contextmanager
def _reading(model: nn.Module, batch: Tensor, call: Any) -> Iterator[None]:
    """Call `call` for what reads `batch`, or some of its positions; a result replaces the output.

    It gets the module, what it reads, its output, and the first of these positions.
    """
    active = True

    def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
        nonlocal active
        read = inputs[0]
        if not active or (read is not batch and read._base is not batch):  # that of the other side
            return None
        active = False  # `call` may run the module itself
        try:
            result: Tensor | None = call(module, read, output, read.storage_offset())
        finally:
            active = True
        return result

    readers = [m for m in model.modules() if isinstance(m, TokenEmbedding | InputAdapter)]
    with hooked(after=((reader, hook) for reader in readers)):
        yield


@contextmanager
def _without_cudnn(batch: Tensor) -> Iterator[None]:
    """Run recurrent layers without cuDNN, whose kernels have no backward pass outside training.

    The switch is global, so no other work is let in meanwhile.
    """
    if not batch.is_cuda:
        yield
        return
    with preemptible(lambda: None), torch.backends.cudnn.flags(enabled=False):
        yield
