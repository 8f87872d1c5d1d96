"""Ensembles: several models that write one target together."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import cast, final

import torch
from jaxtyping import Int
from torch import Tensor, nn

from regard.errors import ArgumentError
from regard.models.protocol import (
    Keep,
    Lengths,
    Maps,
    Memory,
    ModelOutput,
    SequenceModel,
    Src,
    StepOutput,
    Tgt,
)
from regard.ops.check import check_axes
from regard.ops.primitives import log_softmax
from regard.state import State


@dataclass(frozen=True)
class JointMemory(Memory):
    """The memories of all models; the fields of a single memory are the first model's."""

    parts: tuple[Memory, ...] = ()


@dataclass(frozen=True)
class JointState(State):
    """The states of all models."""

    parts: tuple[State, ...]


@final
class Ensemble(SequenceModel):
    """Averages the probabilities of several models at every token.

    They have the same vocabularies. Maps are the mean over the models too; those of models with
    different layers or heads are first reduced to the mean over the heads of the last layer.

    Args:
        models: one or more, of any kinds.
    """

    def __init__(self, models: Sequence[SequenceModel]) -> None:
        super().__init__()
        if not models:
            raise ArgumentError("models", "be one or more", "an empty list", "pass what to join")
        self.models = nn.ModuleList(models)

    @property
    def src_positions(self) -> int | None:
        """The fewest of all models."""
        return _fewest(model.src_positions for model in self._models())

    @property
    def tgt_positions(self) -> int | None:
        """The fewest of all models."""
        return _fewest(model.tgt_positions for model in self._models())

    def encode(self, src: Src, lengths: Lengths, *, need_weights: bool = False) -> Memory:
        """Encode the source with each model."""
        parts = tuple(m.encode(src, lengths, need_weights=need_weights) for m in self._models())
        first = parts[0]
        _check_one_length([part.output.shape[1] for part in parts])
        return JointMemory(
            first.output, first.lengths, maps=_mean_maps([part.maps for part in parts]), parts=parts
        )

    def start(self, memory: Memory) -> State:
        """Return the state of each model before the first token."""
        parts = cast(JointMemory, memory).parts
        pairs = zip(self._models(), parts, strict=True)
        return JointState(tuple(model.start(part) for model, part in pairs))

    def tgt_lengths(self, memory: Memory) -> Int[Tensor, " batch"] | None:
        """Return those of the first model that knows them; the others write as many tokens."""
        pairs = zip(self._models(), cast(JointMemory, memory).parts, strict=True)
        known = (model.tgt_lengths(part) for model, part in pairs)
        return next((lengths for lengths in known if lengths is not None), None)

    def step(
        self, tokens: Int[Tensor, " batch"], state: State, *, need_weights: bool = False
    ) -> StepOutput:
        """Run a step of each model. The logits are log-probabilities."""
        check_axes("tokens", tokens, "batch")
        pairs = zip(self._models(), cast(JointState, state).parts, strict=True)
        outs = [model.step(tokens, part, need_weights=need_weights) for model, part in pairs]
        return StepOutput(
            _mean_of_probabilities([out.logits for out in outs]),
            JointState(tuple(out.state for out in outs)),
            _mean_maps([out.maps for out in outs]),
        )

    def forward(
        self, src: Src, lengths: Lengths, tgt: Tgt, *, keep: Keep = None, need_weights: bool = False
    ) -> ModelOutput:
        """Score all next tokens at once."""
        outs = [
            model(src, lengths, tgt, keep=keep, need_weights=need_weights)
            for model in self._models()
        ]
        return ModelOutput(
            _mean_of_probabilities([out.logits for out in outs]),
            _mean_maps([out.maps for out in outs]),
            lengths=outs[0].lengths,
        )

    def _models(self) -> list[SequenceModel]:
        return [cast(SequenceModel, model) for model in self.models]


def _fewest(positions: Iterable[int | None]) -> int | None:
    return min((most for most in positions if most is not None), default=None)


def _check_one_length(lengths: list[int]) -> None:
    if len(set(lengths)) > 1:
        raise ArgumentError(
            "models",
            "make of a source memories of one length",
            " and ".join(map(str, lengths)),
            "join models whose adapters have the same stack",
        )


def _mean_of_probabilities(logits: list[Tensor]) -> Tensor:
    """Return the log of the mean probability, (..., vocab)."""
    sizes = [part.shape[-1] for part in logits]
    if len(set(sizes)) > 1:
        raise ArgumentError(
            "models",
            "have target vocabularies of one size",
            " and ".join(map(str, sizes)),
            "join models that were trained with the same target tokeniser",
        )
    return torch.stack([log_softmax(part) for part in logits]).logsumexp(0) - math.log(len(logits))


def _mean_maps(maps: list[Maps]) -> Maps:
    """Average over the models that have maps of a kind; slots of two memories do not correspond."""
    kinds = dict.fromkeys(kind for part in maps for kind in part if kind != "memory")
    return {kind: _mean_layers([part[kind] for part in maps if kind in part]) for kind in kinds}


def _mean_layers(layers: list[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    shapes = {tuple(tensor.shape for tensor in part) for part in layers}
    if len(shapes) > 1:
        layers = [(part[-1].mean(dim=1, keepdim=True),) for part in layers]
    return tuple(torch.stack(same).mean(dim=0) for same in zip(*layers, strict=True))
