"""A decoder beside connectionist temporal classification, with which it is trained and searches.

Watanabe et al. (2017), https://doi.org/10.1109/JSTSP.2017.2763455: the encoder also learns to write
the target by itself, one token or a blank at each position (Graves et al., 2006), which makes
attention move from left to right. In a search, both score the next token.
"""

from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, cast, final

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable

from regard import masks
from regard.models.decoders import Decoder, DecoderOutput
from regard.models.embedding import TokenEmbedding
from regard.models.protocol import Keep, Memory, Tgt, select_positions
from regard.ops.check import check_share, check_weight
from regard.ops.primitives import log_softmax
from regard.preemption import in_turn
from regard.state import OF_SOURCE, State
from regard.symbols import BOS, EOS, PAD

#: the blank of CTC: no target has padding
BLANK: Final = PAD
#: logarithm of a probability that is as good as none, and finite, so that differences are
NEVER: Final = -1e9
#: that of a token beyond the end of a source, of which sums keep their digits
BEYOND: Final = -1e6


@dataclass(frozen=True)
class PrefixState(State):
    """Probabilities that CTC has written a prefix by each position, and nothing else.

    Positions are counted from 0, before the first. All are logarithms, in float64.

    Attributes:
        log_probs: of each token at each position; beyond the end of a source, a blank is certain.
        by_token: written by a path that ends with the prefix's last token.
        by_blank: written by a path that ends with a blank.
        total: probability of all targets that begin with the prefix.
        last: the prefix's last token; `bos` if it is empty.
    """

    log_probs: Float[Tensor, "batch src_len tgt_vocab"] = field(metadata=OF_SOURCE)
    by_token: Float[Tensor, "batch positions"]
    by_blank: Float[Tensor, "batch positions"]
    total: Float[Tensor, " batch"]
    last: Int[Tensor, " batch"]

    @staticmethod
    def of(
        log_probs: Float[Tensor, "batch src_len tgt_vocab"], lengths: Int[Tensor, " batch"]
    ) -> "PrefixState":
        """Return the state of the empty prefix."""
        real = masks.padding(lengths, log_probs.shape[1])[:, 0, 0, :, None]
        certain = torch.full_like(log_probs[:1, :1], BEYOND, dtype=torch.float64)
        certain[..., BLANK] = 0.0
        log_probs = log_probs.double().where(real, certain)
        by_blank = F.pad(log_probs[..., BLANK].cumsum(dim=1), (1, 0))
        return PrefixState(
            log_probs,
            torch.full_like(by_blank, NEVER),
            by_blank,
            torch.zeros_like(by_blank[:, 0]),
            torch.full_like(lengths, BOS),
        )

    def extended(self, tokens: Int[Tensor, " batch"]) -> "PrefixState":
        """Return the state of longer prefixes; `bos` and padding leave theirs as they are."""
        index = tokens[:, None, None].expand(-1, self.log_probs.shape[1], 1)
        own = self.log_probs.gather(2, index).squeeze(2)
        before = self._before(tokens)
        by_token = linear_recurrence(own, before + own)
        blank = self.log_probs[..., BLANK]
        never = by_token.new_full((len(tokens), 1), NEVER)
        by_token = torch.cat([never, by_token], dim=1)
        by_blank = linear_recurrence(blank, by_token[:, :-1] + blank)
        longer = PrefixState(
            self.log_probs,
            by_token,
            torch.cat([never, by_blank], dim=1),
            (before + own).logsumexp(dim=1),
            tokens,
        )
        same = (tokens == BOS) | (tokens == PAD)
        kept = {
            name: torch.where(same.view(-1, *[1] * (new.ndim - 1)), getattr(self, name), new)
            for name, new in vars(longer).items()
            if name != "log_probs"
        }
        return replace(self, **kept)

    def next_log_probs(self) -> Float[Tensor, "batch tgt_vocab"]:
        """Return the log-probability of each token after the prefix, `eos` if it is the whole."""
        either = torch.logaddexp(self.by_token, self.by_blank)
        top = either.amax(dim=1, keepdim=True)
        scores = ((either - top).exp()[:, None, :-1] @ self.log_probs.exp())[:, 0].log() + top
        index = self.last[:, None, None].expand(-1, self.log_probs.shape[1], 1)
        again = self._before(self.last) + self.log_probs.gather(2, index).squeeze(2)
        scores = scores.scatter(1, self.last[:, None], again.logsumexp(dim=1, keepdim=True))
        scores[:, EOS] = either[:, -1]
        scores[:, BLANK] = scores[:, BOS] = NEVER
        return (scores - self.total[:, None]).clamp_min(NEVER)

    def _before(self, tokens: Int[Tensor, " batch"]) -> Float[Tensor, "batch src_len"]:
        """Return the paths that a token may follow at each position.

        A token after itself needs a blank between them.
        """
        either = torch.logaddexp(self.by_token, self.by_blank)
        return torch.where((tokens == self.last)[:, None], self.by_blank, either)[:, :-1]


def linear_recurrence(
    factors: Float[Tensor, "batch length"], terms: Float[Tensor, "batch length"]
) -> Float[Tensor, "batch length"]:
    """Return `x_t = a_t x_{t-1} + b_t` with `x_0 = 0`, for logarithms of a, b and x.

    `x_t / A_t` is a sum of `b_s / A_s`, where A is the product of all factors so far.
    """
    product = factors.cumsum(dim=1)
    return product + torch.logcumsumexp(terms - product, dim=1)


@dataclass(frozen=True)
class CTCJointState(State):
    """The state of the decoder; the logits of CTC in training, and its prefixes in a search."""

    decoder: State
    logits: Float[Tensor, "batch src_len tgt_vocab"] = field(metadata=OF_SOURCE)
    lengths: Int[Tensor, " batch"] = field(metadata=OF_SOURCE)
    prefix: PrefixState | None


@final
class JointDecoder(Decoder):
    """Any decoder, whose encoder also learns by CTC.

    In training, the logits are those of the decoder, and CTC adds a penalty to the first token of
    each target. Otherwise the logits are a weighted mean of the log-probabilities of both.

    Args:
        decoder: scores tokens by itself.
        memory_size: width of the memory.
        weight: of the CTC loss, which is added to that of the decoder. Their weights in the paper
            are `weight / (1 + weight)` and `1 / (1 + weight)`.
        search_weight: share of CTC in the scores of a search; 0 leaves them to the decoder.

    Examples:
        >>> model = regard.models.PRESETS["bahdanau"](src_vocab=11, tgt_vocab=13, size="tiny")
        >>> size = model.encoder.output_size
        >>> decoder = regard.models.JointDecoder(model.decoder, memory_size=size, weight=0.3)
        >>> joint = regard.models.EncoderDecoder(model.encoder, decoder)
        >>> joint(torch.tensor([[5, 7, 4, 2]]), None, torch.tensor([[1, 6]])).penalty.shape
        torch.Size([1, 2])
    """

    def __init__(
        self, decoder: Decoder, *, memory_size: int, weight: float, search_weight: float = 0.0
    ) -> None:
        super().__init__()
        check_weight(weight=weight)
        check_share(search_weight=search_weight)
        self.decoder, self.weight, self.search_weight = decoder, weight, search_weight
        self.project = nn.Linear(memory_size, self.embedding.vocab)

    @property
    def embedding(self) -> TokenEmbedding:
        """Of target tokens."""
        return cast(TokenEmbedding, self.decoder.embedding)

    def start(self, memory: Memory) -> State:
        """Return the state of the decoder, and the empty prefix."""
        logits = self.project(memory.output)
        searches = self.search_weight > 0 and not self.training
        return CTCJointState(
            self.decoder.start(memory),
            logits,
            memory.lengths,
            PrefixState.of(log_softmax(logits), memory.lengths) if searches else None,
        )

    def forward(
        self, tokens: Tgt, state: State, *, keep: Keep = None, need_weights: bool = False
    ) -> DecoderOutput:
        """Score by the decoder, with the CTC loss; or by both, if the state has a prefix."""
        state = cast(CTCJointState, state)
        out: DecoderOutput = self.decoder(
            tokens, state.decoder, keep=keep, need_weights=need_weights
        )
        after = replace(state, decoder=out.state)
        if state.prefix is None:
            return out._replace(state=after, penalty=self._penalty(tokens, state, keep, out))
        prefix, rows = state.prefix, []
        for column in in_turn(tokens.unbind(dim=1)):
            prefix = prefix.extended(column)
            rows.append(prefix.next_log_probs())
        ctc = select_positions(torch.stack(rows, dim=1), keep)
        own = log_softmax(out.logits)
        joint = own + self.search_weight * (ctc.to(own.dtype) - own)
        return out._replace(logits=joint, state=replace(after, prefix=prefix))

    def _penalty(
        self, tokens: Tgt, state: CTCJointState, keep: Keep, out: DecoderOutput
    ) -> Tensor | None:
        """Return the weighted CTC loss of each target at its first token; None outside training."""
        if not self.training or not self.weight:
            return out.penalty
        losses = ctc_loss(state.logits, state.lengths, tokens[:, 1:])
        penalty = F.pad(self.weight * losses[:, None], (0, tokens.shape[1] - 1))
        kept = select_positions(penalty, keep)
        return kept if out.penalty is None else out.penalty + kept


def ctc_loss(
    logits: Float[Tensor, "batch src_len tgt_vocab"],
    lengths: Int[Tensor, " batch"],
    targets: Int[Tensor, "batch tgt_len"],
) -> Float[Tensor, " batch"]:
    """Return the negative log-probability of each target; 0 if it does not fit its positions."""
    with torch.autocast(logits.device.type, enabled=False):
        log_probs = log_softmax(logits)
        if log_probs.device.type != "cpu":
            return recordable_ctc_loss(log_probs, lengths, targets)
        return F.ctc_loss(
            log_probs.transpose(0, 1),
            targets,
            lengths,
            (targets != PAD).sum(dim=1),
            blank=BLANK,
            reduction="none",
            zero_infinity=True,
        )


def recordable_ctc_loss(
    log_probs: Float[Tensor, "batch src_len tgt_vocab"],
    lengths: Int[Tensor, " batch"],
    targets: Int[Tensor, "batch tgt_len"],
) -> Float[Tensor, " batch"]:
    """Return what `torch.nn.functional.ctc_loss` does, by operations that a CUDA graph can hold.

    That reads the lengths on the host; here nothing waits for the device.
    """
    losses: Tensor = _CTCLoss.apply(log_probs, lengths, targets)  # type: ignore[no-untyped-call]
    return losses


class _Paths(NamedTuple):
    """Log-probabilities of each prefix of each target by each position, (1 + tgt_len, batch, 1 +
    src_len): of paths that end with a token, and of those that end with a blank."""

    by_token: Tensor
    by_blank: Tensor


def _paths(
    own: Float[Tensor, "batch tgt_len src_len"],
    blank: Float[Tensor, "batch src_len"],
    repeats: Bool[Tensor, "batch tgt_len"],
) -> _Paths:
    """Return the paths of all prefixes, as `PrefixState.extended` has them one by one."""
    by_blank = F.pad(blank.cumsum(dim=1), (1, 0))
    by_token = torch.full_like(by_blank, NEVER)
    tokens, blanks = [by_token], [by_blank]
    for now, again in zip(own.unbind(dim=1), repeats.unbind(dim=1), strict=True):
        either = torch.logaddexp(by_token, by_blank)
        before = torch.where(again[:, None], by_blank, either)[:, :-1]
        by_token = F.pad(linear_recurrence(now, before + now), (1, 0), value=NEVER)
        by_blank = F.pad(linear_recurrence(blank, by_token[:, :-1] + blank), (1, 0), value=NEVER)
        tokens.append(by_token)
        blanks.append(by_blank)
    return _Paths(torch.stack(tokens), torch.stack(blanks))


class _CTCLoss(torch.autograd.Function):
    """`-log p(target)`; its gradient is the share of all paths that has each token at a position.

    The paths before a position are those of the target's prefixes, and the paths after it those of
    the reversed target's prefixes in the reversed source.
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx, log_probs: Tensor, lengths: Tensor, targets: Tensor
    ) -> Float[Tensor, " batch"]:
        counts = (targets != PAD).sum(dim=1)
        real = masks.padding(lengths, log_probs.shape[1])[:, 0, 0]
        index = targets[:, None].expand(-1, log_probs.shape[1], -1)
        own = log_probs.double().gather(2, index).masked_fill(~real[..., None], BEYOND).mT
        blank = log_probs[..., BLANK].double().masked_fill(~real, 0.0)
        repeats = F.pad(targets[:, 1:] == targets[:, :-1], (1, 0))[:, : targets.shape[1]]
        ahead = _paths(own, blank, repeats)
        ends = torch.logaddexp(ahead.by_token[..., -1], ahead.by_blank[..., -1])
        total = ends.gather(0, counts[None])[0]
        fits = total > BEYOND / 2
        saved = (own, blank, repeats, *ahead, counts, total, fits & real.T, targets, log_probs)
        ctx.save_for_backward(*saved)
        return torch.where(fits, -total, 0.0).to(log_probs.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Float[Tensor, " batch"]) -> tuple[Tensor, None, None]:
        own, blank, repeats, by_token, by_blank, counts, total, counted, targets, log_probs = (
            ctx.saved_tensors
        )
        tgt_len, src_len = own.shape[1:]
        # row b of the reversed target begins with its last real token
        places = torch.arange(tgt_len, device=own.device)
        mirror = (counts[:, None] - 1 - places).clamp(min=0)
        index = mirror[..., None].expand(-1, -1, src_len)
        follows = F.pad(repeats[:, 1:], (0, 1))
        back = _paths(own.gather(1, index).flip(2), blank.flip(1), follows.gather(1, mirror))
        # after u tokens ahead, and the others of the target back; both have read the position
        left = (counts - torch.arange(tgt_len + 1, device=own.device)[:, None]).clamp(min=0)
        rows = left[..., None].expand(-1, -1, src_len)
        after_blank = back.by_blank[..., 1:].flip(2).gather(0, rows)
        after_token = back.by_token[..., 1:].flip(2).gather(0, (rows + 1).clamp(max=tgt_len))
        scale = total[:, None]
        is_real = places < counts[:, None]
        tokens = (by_token[1:, :, 1:] + after_token[1:] - own.transpose(0, 1) - scale).exp()
        tokens = tokens.movedim(0, 1).where(is_real[..., None], 0.0)  # (batch, tgt_len, src_len)
        begun = torch.arange(tgt_len + 1, device=own.device)[:, None] <= counts
        blanks = (
            (by_blank[..., 1:] + after_blank - blank - scale).exp().where(begun[..., None], 0.0)
        )
        # a product, since sums by scatter_add differ from run to run on a GPU
        kinds = targets[..., None] == torch.arange(log_probs.shape[2], device=own.device)
        shares = tokens.mT @ kinds.to(tokens.dtype)
        shares[..., BLANK] = blanks.sum(dim=0)
        slope = torch.where(counted.T, -grad.double()[:, None], 0.0)[..., None] * shares
        return slope.to(log_probs.dtype), None, None
