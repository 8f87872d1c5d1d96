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

    Prompts are padded on their left, so that all answers of a batch begin at one position.

    Args:
        module: the model, perhaps wrapped by peft.
        ids: the number there of each token here; -1 for a symbol that is none of its tokens.

    Examples:
        >>> regard.pretrained.PromptModel.__mro__[1] is regard.models.SequenceModel
        True
    """

    ids: Tensor

    def __init__(self, module: Any, ids: Sequence[int]) -> None:
        super().__init__()
        self.module: Any = module
        self.register_buffer("ids", torch.tensor(ids, device=module.device), persistent=False)
        self.register_state_dict_post_hook(_keep_trained)  # type: ignore[no-untyped-call]

    @property
    def frozen(self) -> set[str]:
        """Names of weights that are not trained: they stay in the folder that they come from."""
        names = {name for name, weight in self.named_parameters() if not weight.requires_grad}
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
        prompts, seen = self._prompts(src, real_lengths(src, lengths))
        answers = self.ids[tgt[:, 1:]].clamp(min=0)
        tokens = torch.cat([prompts, answers], 1)
        seen = torch.cat([seen, tgt[:, 1:] != PAD], 1)
        logits = self._run(tokens, seen, None, logits_to_keep=tgt.shape[1]).logits
        return ModelOutput(self._ours(select_positions(logits[:, -tgt.shape[1] :], keep)), {})

    def _prompts(self, src: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return prompts with their padding on the left and without `eos`, and what is real."""
        width = max(1, src.shape[1] - 1)
        places = torch.arange(width, device=src.device) - width + lengths[:, None] - 1
        seen = places >= 0
        return self.ids[src.gather(1, places.clamp(min=0))].clamp(min=0), seen

    def _run(self, tokens: Tensor, seen: Tensor, cache: Any, **options: Any) -> Any:
        """Run the model on tokens after those of a cache; None keeps no cache."""
        from transformers import DynamicCache

        if cache is not None:
            kept = DynamicCache(cache) if cache else DynamicCache()
            options |= {"past_key_values": kept, "use_cache": True}
        else:
            options["use_cache"] = False
        places = (seen.long().cumsum(1) - 1).clamp(min=0)[:, -tokens.shape[1] :]
        return self.module(
            input_ids=tokens, attention_mask=seen.long(), position_ids=places, **options
        )

    def _ours(self, logits: Tensor) -> Tensor:
        """Return logits in the order of the tokens here."""
        found = logits.index_select(-1, self.ids.clamp(min=0))
        return found.masked_fill_(self.ids < 0, NEVER)


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
