"""A trained model whose steps run on the CPU by compiled kernels."""

from typing import Any, cast, final

import torch
from jaxtyping import Int
from torch import Tensor, nn

from regard.models.decoders import AttentionDecoder, RecurrentDecoder
from regard.models.encoder_decoder import EncoderDecoder
from regard.models.protocol import (
    Keep,
    Lengths,
    Memory,
    ModelOutput,
    SequenceModel,
    Src,
    StepOutput,
    Tgt,
)
from regard.ops.backend import HAS_NUMBA, active_backend, is_watched
from regard.preemption import has_hooks, submodules
from regard.state import State


def refuse_cpu_model(model: nn.Module, *, need_weights: bool = False) -> str | None:
    """Return the reason why `CpuModel` cannot take the place of a model, or None."""
    if not HAS_NUMBA:
        return "numba is not installed"
    if not isinstance(model, EncoderDecoder):
        return "it is no encoder-decoder"
    if any(p.dtype != torch.float32 or p.device.type != "cpu" for p in model.parameters()):
        return "its weights are not float32 on the CPU"
    if (refusal := _refuse_now(model)) is not None:
        return refusal
    if isinstance(model.decoder, AttentionDecoder):
        if need_weights:
            return "its compiled steps return no maps"
        from regard.models.cpu.transformer import refuse_transformer

        return refuse_transformer(model.decoder)
    if isinstance(model.decoder, RecurrentDecoder):
        from regard.models.cpu.recurrent import refuse_recurrent

        return refuse_recurrent(model.decoder)
    return f"it has a {type(model.decoder).__name__}"


def _refuse_now(model: nn.Module) -> str | None:
    """Return the reason why compiled steps cannot run in this moment, or None."""
    if active_backend() != "auto" or is_watched():
        return "its operators are watched, or run by a chosen backend"
    if torch.is_autocast_enabled("cpu"):
        return "it runs under autocast"
    return "it has hooks" if has_hooks(submodules(model)) else None


@final
class CpuModel(SequenceModel):
    """A model for searches on the CPU, equal to the one it is made of up to rounding.

    A state is continued once: keys and values are written in place.
    """

    def __init__(self, model: SequenceModel, *, own_steps: bool = False) -> None:
        super().__init__()
        self.model = model
        self._versions = _versions(model)
        steps: Any = model
        decoder = None if own_steps else cast(EncoderDecoder, model).decoder
        if isinstance(decoder, AttentionDecoder):
            from regard.models.cpu.transformer import TransformerSteps

            steps = TransformerSteps(decoder)
        elif isinstance(decoder, RecurrentDecoder):
            from regard.models.cpu.recurrent import RecurrentSteps

            steps = RecurrentSteps(decoder)
        self.steps = steps
        from regard.ops import beam_kernels  # noqa: F401  compiled now, with all others

    def is_current(self) -> bool:
        """Return whether the weights are still those that were prepared."""
        return self._versions == _versions(self.model)

    def can_run(self, *, need_weights: bool) -> bool:
        """Return whether it may still take the place of its model, like `refuse_cpu_model`.

        The weights that were prepared need no second look.
        """
        gives_maps = not isinstance(self.model.decoder, AttentionDecoder)
        return (gives_maps or not need_weights) and _refuse_now(self.model) is None

    @property
    def is_compiled(self) -> bool:
        """True: steps run by compiled CPU kernels."""
        return True

    @property
    def src_positions(self) -> int | None:
        """The number of learned positions of the encoder; None if unlimited."""
        return self.model.src_positions

    @property
    def tgt_positions(self) -> int | None:
        """The number of learned positions of the decoder; None if unlimited."""
        return self.model.tgt_positions

    def encode(self, src: Src, lengths: Lengths, *, need_weights: bool = False) -> Memory:
        """Encode the source."""
        return self.model.encode(src, lengths, need_weights=need_weights)

    def start(self, memory: Memory) -> State:
        """Return the state before the first target token."""
        state: State = self.steps.start(memory)
        return state

    def step(
        self, tokens: Int[Tensor, " batch"], state: State, *, need_weights: bool = False
    ) -> StepOutput:
        """Read the newest token of each row and score the next one."""
        out: StepOutput = self.steps.step(tokens.contiguous(), state, need_weights=need_weights)
        return out

    def tgt_lengths(self, memory: Memory) -> Int[Tensor, " batch"] | None:
        """Return the number of tokens of each target, if the model knows them."""
        return self.model.tgt_lengths(memory)

    def forward(
        self, src: Src, lengths: Lengths, tgt: Tgt, *, keep: Keep = None, need_weights: bool = False
    ) -> ModelOutput:
        """Score all next tokens at once, given the right ones before them."""
        out: ModelOutput = self.model(src, lengths, tgt, keep=keep, need_weights=need_weights)
        return out


def _versions(model: nn.Module) -> list[tuple[int, int]]:
    """Return numbers that change with the weights of a model."""
    return [
        (parameter.data_ptr(), parameter._version)
        for module in submodules(model)
        for parameter in module._parameters.values()
        if parameter is not None
    ]
