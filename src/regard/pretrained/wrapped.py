"""Causal language models of transformers behind the protocol of regard's models.

They read a prompt and write its answer, so that training, search and evaluation take them for any
other model of pairs: the loss is that of the answer alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable

from regard.errors import RegardError
from regard.models import Memory, ModelOutput, SequenceModel, StepOutput
from regard.models.protocol import Keep, Lengths, Src, Tgt, real_lengths, select_positions
from regard.state import State
from regard.symbols import BOS, PAD

#: logit of a symbol that is no token of the model
NEVER = -1e4


@dataclass(frozen=True)
class PromptState(State):
    """The state of a search: keys and values of all layers, and which of them are no padding.

    Attributes:
        cache: keys and values of each layer.
        seen: positions that are real.
        last: the last token of the prompt, which the first step reads in the place of `bos`.
    """

    cache: tuple[tuple[Tensor, Tensor], ...]
    seen: Bool[Tensor, "batch kv_len"]
    last: Int[Tensor, " batch"]


@final
class PromptModel(SequenceModel):
    """A causal language model of transformers that continues a source, its prompt.

    A search pads prompts on their left, so that all answers of a batch begin at one position. The
    loss has each answer right after its prompt: with padding at the end alone, causal attention
    needs no mask, and the fastest kernels run.

    Args:
        module: the model, perhaps wrapped by peft.
        ids: the number there of each token here; -1 for a symbol that is none of its tokens.

    Examples:
        >>> regard.pretrained.PromptModel.__mro__[1] is regard.models.SequenceModel
        True
    """

    ids: Tensor
    absent: Tensor
    places: Tensor

    def __init__(self, module: Any, ids: Sequence[int]) -> None:
        super().__init__()
        self.module: Any = module
        theirs = torch.tensor(ids, device=module.device)
        absent = (theirs < 0).nonzero().flatten()
        places = theirs.argsort()[len(absent) :]  # of their tokens here
        for name, numbers in {"ids": theirs, "absent": absent, "places": places}.items():
            self.register_buffer(name, numbers, persistent=False)
        self.register_state_dict_post_hook(_keep_trained)  # type: ignore[no-untyped-call]

    @property
    def frozen(self) -> set[str]:
        """Names of weights that are not trained, which stay in their folder, and of second ones."""
        first, every = dict(self.named_parameters()), self.named_parameters(remove_duplicate=False)
        names = {name for name, w in every if not w.requires_grad or name not in first}
        return names | {name for name, _ in self.named_buffers()} if names else names

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Load the weights that are trained; the others stay as they are."""
        found = super().load_state_dict(state_dict, strict=False, assign=assign)
        missing = [name for name in found.missing_keys if name not in self.frozen]
        if strict and (missing or found.unexpected_keys):
            first = (missing or found.unexpected_keys)[0]
            raise RuntimeError(f"{first} is {'missing' if missing else 'no weight of the model'}")
        return found

    def encode(self, src: Src, lengths: Lengths, *, need_weights: bool = False) -> Memory:
        """Return a memory of width 0 with the tokens of the prompts."""
        nothing = torch.zeros(*src.shape, 0, device=src.device)
        return Memory(nothing, real_lengths(src, lengths), tokens=src)

    def start(self, memory: Memory) -> State:
        """Read the prompts but for their last token."""
        assert memory.tokens is not None
        tokens, seen = self._prompts(memory.tokens, memory.lengths)
        if tokens.shape[1] == 1:
            return PromptState((), seen[:, :0], tokens[:, 0])
        out = self._run(tokens[:, :-1], seen[:, :-1], ())
        return PromptState(_layers(out.past_key_values), seen[:, :-1], tokens[:, -1])

    def step(
        self, tokens: Int[Tensor, " batch"], state: State, *, need_weights: bool = False
    ) -> StepOutput:
        """Read the newest token of each row, first the end of its prompt, and score the next."""
        assert isinstance(state, PromptState)
        theirs = torch.where(tokens == BOS, state.last, self.ids[tokens].clamp(min=0))
        seen = torch.cat([state.seen, torch.ones_like(tokens, dtype=torch.bool)[:, None]], 1)
        out = self._run(theirs[:, None], seen, state.cache)
        after = PromptState(_layers(out.past_key_values), seen, state.last)
        return StepOutput(self._ours(out.logits[:, -1]), after, {})

    def forward(
        self, src: Src, lengths: Lengths, tgt: Tgt, *, keep: Keep = None, need_weights: bool = False
    ) -> ModelOutput:
        """Score all next tokens of the answers at once, given the right ones before them."""
        batch, size = tgt.shape
        prompts = (real_lengths(src, lengths) - 1).clamp(min=1)  # without `eos`
        # transformers asks the device as well before it begins
        width = int((prompts + (tgt[:, 1:] != PAD).sum(1)).max())
        both, places = torch.cat([src, tgt[:, 1:]], 1), torch.arange(width, device=src.device)
        behind = places - prompts[:, None] + src.shape[1]
        places = places.where(places < prompts[:, None], behind).clamp(max=both.shape[1] - 1)
        steps = prompts[:, None] - 1 + torch.arange(size, device=src.device)
        rows = width * torch.arange(batch, device=src.device)[:, None]
        scored = select_positions(rows + steps.clamp(max=width - 1), keep)

        def select(head: nn.Module, given: Any) -> tuple[Tensor]:
            return (given[0].flatten(0, 1).index_select(0, scored.flatten())[None],)

        hook = self.module.get_output_embeddings().register_forward_pre_hook(select)
        try:
            tokens = self.ids[both.gather(1, places)].clamp(min=0)
            logits = self._ours(self.module(input_ids=tokens, use_cache=False).logits[0])
        finally:
            hook.remove()
        return ModelOutput(logits.view(*scored.shape, -1), {})

    def _prompts(self, src: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return prompts with their padding on the left and without `eos`, and what is real."""
        width = max(1, src.shape[1] - 1)
        places = torch.arange(width, device=src.device) - width + lengths[:, None] - 1
        seen = places >= 0
        return self.ids[src.gather(1, places.clamp(min=0))].clamp(min=0), seen

    def _run(self, tokens: Tensor, seen: Tensor, cache: Any) -> Any:
        """Run the model on tokens after those of a cache."""
        from transformers import DynamicCache

        kept = DynamicCache(cache) if cache else DynamicCache()
        places = (seen.long().cumsum(1) - 1).clamp(min=0)[:, -tokens.shape[1] :]
        return self.module(
            input_ids=tokens,
            attention_mask=seen.long(),
            position_ids=places,
            past_key_values=kept,
            use_cache=True,
        )

    def _ours(self, logits: Tensor) -> Tensor:
        """Return logits in the order of the tokens here."""
        found: Tensor = _Reordered.apply(logits, self.ids, self.places)  # type: ignore[no-untyped-call]
        return found.index_fill_(-1, self.absent, NEVER)


class _Reordered(torch.autograd.Function):
    """A selection by ids; its gradient is one, too, since no token comes twice."""

    @staticmethod
    def forward(ctx: FunctionCtx, logits: Tensor, ids: Tensor, places: Tensor) -> Tensor:
        ctx.save_for_backward(places)
        return logits.index_select(-1, ids.clamp(min=0))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (places,) = ctx.saved_tensors
        return grad.index_select(-1, places), None, None


def _layers(cache: Any) -> tuple[tuple[Tensor, Tensor], ...]:
    layers = getattr(cache, "layers", None)
    if not layers or any(getattr(layer, "keys", None) is None for layer in layers):
        raise RegardError(
            "a model must keep keys and values in all layers to write here, but this one does not: "
            "`regard export RUN --to transformers` writes it for transformers."
        )
    return tuple((layer.keys, layer.values) for layer in cache.layers)


def _keep_trained(
    module: nn.Module, state: dict[str, Any], prefix: str, metadata: dict[str, Any]
) -> None:
    """Remove weights that are not trained from a state dict."""
    assert isinstance(module, PromptModel)
    for name in module.frozen:
        state.pop(prefix + name, None)
