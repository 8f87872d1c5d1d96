"""Cross entropy and R-Drop over large vocabularies, and `Objective`, a model with its loss.

The logits of a batch are the largest tensor of training, and the textbook formulation makes four of
their size: float32 logits, log-softmax, and a gradient of each. Here there is one: rows are widened
to float32 as many at a time as a cache holds, the forward pass keeps one number per row, and the
backward pass writes the gradient over the logits. On a GPU the kernels of `triton_losses.py` do the
same in the dtype of the logits.

R-Drop (Wu et al., 2021, https://arxiv.org/abs/2106.14448) makes two passes with different dropout
agree. With p and q their distributions for a token, the paper's loss is
`-log p(gold) - log q(gold) + alpha / 2 (KL(p || q) + KL(q || p))`. Half of that is used here, so
that losses and clipped gradients have the scale of a single pass.

Distillation token by token: a model learns the probabilities of an ensemble of runs.

Hinton et al. (2015), https://arxiv.org/abs/1503.02531; for sequences, "word-level" distillation of
Kim and Rush (2016), https://aclanthology.org/D16-1139. With p the mean distribution of the teachers
for a token, q that of the student, and w the weight, the loss of a token is
`w CE(p, q) + (1 - w) CE(gold, q)`; label smoothing concerns the second part alone.
"""

import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, cast, final

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.utils.checkpoint import checkpoint

from regard.errors import ArgumentError
from regard.models import LABEL_PRESETS, SPAN_PRESETS, STORY_PRESETS, ModelOutput, SequenceModel
from regard.models.protocol import Src, select_positions
from regard.ops.backend import HAS_TRITON, INTERPRETED, active_backend
from regard.symbols import PAD
from regard.tasks import Encoders
from regard.training.config import Config
from regard.training.guided_attention import guide_loss
from regard.training.run_folder import RunFolder

#: presets that write no tokens one after another
NOT_TAUGHT: Final = {*LABEL_PRESETS, *SPAN_PRESETS, *STORY_PRESETS}


class Teachers:
    """Trained models whose mean distribution is learned; not part of the student's weights.

    Args:
        models: in evaluation mode, all with one vocabulary.
        weight: share of the loss that is theirs.
    """

    def __init__(self, models: Sequence[SequenceModel], weight: float) -> None:
        self.models, self.weight = tuple(models), weight

    @torch.no_grad()
    def probabilities(
        self,
        src: Src,
        lengths: Int[Tensor, " batch"],
        tgt_in: Int[Tensor, "batch tgt_len"],
        keep: Int[Tensor, " kept"],
    ) -> Float[Tensor, "kept vocab"]:
        """Return the mean distribution of the targets at the positions `keep`, in float32."""
        total: Tensor | None = None
        for model in self.models:
            found = model(src, lengths, tgt_in, keep=keep).logits.float().softmax(dim=1)
            total = found if total is None else total.add_(found)
        assert total is not None
        return total.div_(len(self.models))


def distillation_loss(
    logits: Float[Tensor, "tokens vocab"],
    target: Int[Tensor, " tokens"],
    taught: Float[Tensor, "tokens vocab"],
    weight: float,
    smoothing: float = 0.0,
    real: Bool[Tensor, " tokens"] | Float[Tensor, " tokens"] | None = None,
) -> Float[Tensor, ""]:
    """Return the summed loss of a student, in float32 at least.

    Args:
        logits: of the student, for every target token.
        target: ids of the target tokens.
        taught: the teachers' distribution of each token.
        weight: share of the teachers in the loss.
        smoothing: label smoothing of the share of the targets.
        real: which targets count, or how much; all of them if None.
    """
    log_q = F.log_softmax(logits, dim=1, dtype=torch.promote_types(logits.dtype, torch.float32))
    gold = log_q.gather(1, target[:, None]).squeeze(1)
    hard = (1 - smoothing) * gold + smoothing * log_q.mean(dim=1)
    each = -weight * (taught * log_q).sum(dim=1) - (1 - weight) * hard
    return (each if real is None else each * real).sum()


def teacher_encoders(config: Config) -> Encoders:
    """Return the tokenisers of the teachers, which are the student's, too; loads no weights."""
    found = []
    for name in config.teacher:
        folder = RunFolder(Path(name))
        theirs = folder.read_config()
        task = folder.read_task(theirs)
        if theirs.preset in NOT_TAUGHT or task.input.facts.names_files:
            rule, fix = "write tokens, and read texts", "name runs of text pairs or texts"
            raise ArgumentError("teacher", rule, f"{name!r} with the preset {theirs.preset}", fix)
        found.append(task.encoders)
    if not all(_same(encoders, found[0]) for encoders in found):
        raise _other_tokenizers("one of them", "the first one's")
    return found[0]


def load_teachers(
    config: Config, encoders: Encoders, device: torch.device | str
) -> Teachers | None:
    """Load the teachers of a run; None if it has none.

    Args:
        config: settings of the student.
        encoders: tokenisers of the student.
        device: where the student is trained.
    """
    if not config.teacher:
        return None
    if not _same(teacher_encoders(config), encoders):
        raise _other_tokenizers(config.teacher[0], "the student's")
    models = [RunFolder(Path(name)).load(device).model for name in config.teacher]
    frozen = [cast(SequenceModel, model.requires_grad_(False)) for model in models]
    return Teachers(frozen, config.teacher_weight)


def _same(one: Encoders, other: Encoders) -> bool:
    return all(a.fingerprint == b.fingerprint for a, b in zip(one, other, strict=True))


def _other_tokenizers(which: str, whose: str) -> ArgumentError:
    rule = "be runs with the same tokenisers, since probabilities are compared token by token"
    fix = "train them on the same data with the same settings of tokenisers"
    return ArgumentError("teacher", rule, f"{which} with others than {whose}", fix)


#: logits per chunk: 4 MiB in float32 on a CPU; a GPU wants few, large calls
CHUNK: Final = {"cpu": 1 << 20}
GPU_CHUNK: Final = 1 << 28

#: which targets count, or the weight of each
Counted = Bool[Tensor, " tokens"] | Float[Tensor, " tokens"] | None


def cross_entropy(
    logits: Float[Tensor, "tokens vocab"],
    target: Int[Tensor, " tokens"],
    smoothing: float = 0.0,
    real: Counted = None,
) -> Float[Tensor, ""]:
    """Return the summed cross entropy, like `F.cross_entropy`, in float32 at least.

    The backward pass destroys the logits: they must have no other use.

    Args:
        logits: of every target token, in any float type.
        target: ids of the target tokens.
        smoothing: share of the probability that is spread evenly over the vocabulary.
        real: which targets count, or how much; all of them if None.
    """
    if takes_kernels(logits, real):
        return triton_cross_entropy(logits, target, smoothing, real)
    loss: Tensor = _ChunkedCrossEntropy.apply(logits, target, smoothing, real)  # type: ignore[no-untyped-call]
    return loss


def triton_cross_entropy(
    logits: Float[Tensor, "tokens vocab"],
    target: Int[Tensor, " tokens"],
    smoothing: float,
    real: Bool[Tensor, " tokens"] | None,
) -> Float[Tensor, ""]:
    """`cross_entropy` by the kernel."""
    _check(logits, target, real, passes=1)
    from regard.training.triton_losses import TritonCrossEntropy  # not above: triton may be missing

    loss: Tensor = TritonCrossEntropy.apply(logits, target.contiguous(), smoothing, real)  # type: ignore[no-untyped-call]
    return loss


class _ChunkedCrossEntropy(torch.autograd.Function):
    """`lse - (1 - e) logit_target - e mean(logits)` per row, with `lse = log sum exp(logits)`."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, logits: Tensor, target: Tensor, smoothing: float, real: Tensor | None
    ) -> Float[Tensor, ""]:
        rows, dtype = chunk_rows(logits), wide(logits)
        # one buffer for all chunks, since new memory is slow to get from the system
        room = torch.empty_like(logits[:rows], dtype=dtype)
        losses, totals = [], []
        chunks = zip(torch.split(logits, rows), torch.split(target, rows), strict=True)
        for part, gold in chunks:
            top = part.amax(dim=1, keepdim=True).to(dtype)
            own = part.gather(1, gold[:, None]).squeeze(1).to(dtype)
            x = room[: len(part)].copy_(part).sub_(top)
            above = x.exp_().sum(dim=1).log_()
            top = top.squeeze(1)
            loss = above + (1 - smoothing) * (top - own)
            if smoothing:
                loss += smoothing * (top - part.mean(dim=1, dtype=dtype))
            losses.append(loss)
            totals.append(top + above)
        ctx.save_for_backward(logits, target, torch.cat(totals), real)  # type: ignore[arg-type]
        ctx.smoothing = smoothing  # type: ignore[attr-defined]
        every = torch.cat(losses)
        return (every if real is None else every * real).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Float[Tensor, ""]) -> tuple[Tensor, None, None, None]:
        """Write `grad * (softmax(logits) - (1 - e) onehot - e / vocab)` over the logits."""
        logits, target, totals, real = ctx.saved_tensors
        rows, dtype = chunk_rows(logits), wide(logits)
        same = logits.dtype == dtype
        room = logits[:0] if same else torch.empty_like(logits[:rows], dtype=dtype)
        # the weight of each row
        each = grad.to(dtype).expand(len(target), 1)
        each = each if real is None else each * real[:, None]
        hits = (ctx.smoothing - 1) * each
        chunks = (torch.split(x, rows) for x in (logits, target, totals, each, hits))
        for part, gold, total, slope, hit in zip(*chunks, strict=True):
            x = part if same else room[: len(part)].copy_(part)
            x.sub_(total[:, None]).exp_().mul_(slope)
            if ctx.smoothing:
                x.sub_(slope * (ctx.smoothing / part.shape[1]))
            x.scatter_add_(1, gold[:, None], hit)
            if not same:
                part.copy_(x)
        return logits, None, None, None


def chunk_rows(logits: Tensor) -> int:
    """Return the number of rows per chunk."""
    size = CHUNK.get(logits.device.type, GPU_CHUNK)
    return max(1, size // max(1, logits.shape[1]))


def wide(logits: Tensor) -> torch.dtype:
    """Return the dtype of sums."""
    return torch.promote_types(logits.dtype, torch.float32)


def rdrop_loss(
    logits: Float[Tensor, "two_tokens vocab"],
    target: Int[Tensor, " tokens"],
    smoothing: float,
    alpha: float,
    real: Counted = None,
) -> Float[Tensor, ""]:
    """Return the summed R-Drop loss.

    `(CE(p) + CE(q)) / 2 + alpha / 4 (KL(p || q) + KL(q || p))` for each token, with label smoothing
    in the cross entropies. The backward pass may destroy the logits: they must have no other use.

    Args:
        logits: of all tokens in the first pass, then of the same tokens in the second one.
        target: ids of the target tokens.
        smoothing: share of the probability that is spread evenly over the vocabulary.
        alpha: the weight of the divergence, as in the paper.
        real: which targets count, or how much; all of them if None.
    """
    if takes_kernels(logits, real):
        _check(logits, target, real, passes=2)
        from regard.training.triton_losses import TritonRDrop  # triton may be missing

        options = (target.contiguous(), smoothing, alpha, real)
        loss: Tensor = TritonRDrop.apply(logits, *options)  # type: ignore[no-untyped-call]
        return loss
    count = len(target)
    # the definition keeps about eight tensors of the size of a chunk for the backward pass
    rows = max(1, chunk_rows(logits) // 8)
    parts = [torch.split(x, rows) for x in (logits[:count], logits[count:], target)]
    counts = [None] * len(parts[0]) if real is None else torch.split(real, rows)
    total = torch.zeros((), dtype=wide(logits), device=logits.device)
    for first, second, gold, counted in zip(*parts, counts, strict=True):
        passes = first.to(total.dtype), second.to(total.dtype)
        options = (gold, smoothing, alpha, counted)
        total = total + checkpoint(
            definition, *passes, *options, use_reentrant=False, preserve_rng_state=False
        )
    return total


def definition(
    first: Float[Tensor, "tokens vocab"],
    second: Float[Tensor, "tokens vocab"],
    target: Int[Tensor, " tokens"],
    smoothing: float,
    alpha: float,
    real: Counted = None,
) -> Float[Tensor, ""]:
    """Reference of `rdrop_loss`, with `KL(p || q) + KL(q || p) = sum (p - q) log(p / q)`."""
    log_p, log_q = F.log_softmax(first, dim=1), F.log_softmax(second, dim=1)
    both = log_p + log_q
    hits = F.nll_loss(both, target, reduction="none")
    entropies = (1 - smoothing) * hits - smoothing * both.mean(dim=1)
    divergence = ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(dim=1)
    each = entropies / 2 + alpha / 4 * divergence
    return (each if real is None else each * real).sum()


@final
class Objective(nn.Module):
    """A model with its loss.

    Precision plugins and DDP convert the output of a module, which is cheap for one number and
    expensive for logits.

    Args:
        model: the model to train.
        smoothing: see `cross_entropy`.
        rdrop: the weight alpha of `rdrop_loss`; 0 disables R-Drop.
        teachers: models whose distributions are learned, without R-Drop.
        class_weights: weight of each token of the vocabulary while training; 1 if None.
        guide_weight: weight of `guide_loss` while training.
    """

    class_weights: Tensor | None

    def __init__(
        self,
        model: SequenceModel,
        smoothing: float = 0.0,
        rdrop: float = 0.0,
        teachers: Teachers | None = None,
        class_weights: Float[Tensor, " vocab"] | None = None,
        guide_weight: float = 0.0,
    ) -> None:
        super().__init__()
        self.register_buffer("class_weights", class_weights, persistent=False)
        self.model, self.smoothing, self.rdrop, self.teachers = model, smoothing, rdrop, teachers
        self.guide_weight = guide_weight

    def forward(
        self,
        src: Src,
        lengths: Int[Tensor, " batch"],
        tgt_in: Int[Tensor, "batch tgt_len"],
        tgt_out: Int[Tensor, "batch tgt_len"],
        keep: Int[Tensor, " kept"] | None = None,
        links: Float[Tensor, "batch tgt_len src_len"] | None = None,
        *,
        padded: bool = False,
    ) -> Float[Tensor, ""]:
        """Return the summed loss of the target tokens, with the model's own penalty.

        Args:
            src: source tokens, or frames.
            lengths: number of source tokens of each row, without padding.
            tgt_in: inputs of the decoder.
            tgt_out: target tokens.
            keep: flat positions of `tgt_out` that are not padding, as a batch has them; computing
                them here synchronises the device.
            links: share of each source token in the links of each target token.
            padded: whether `keep` may include padding, which is then masked.
        """
        if keep is None:
            keep = (tgt_out != PAD).flatten().nonzero().squeeze(1)
        gold = select_positions(tgt_out, keep)
        real = gold != PAD if padded else None
        if not self.rdrop:
            out = self.model(src, lengths, tgt_in, keep=keep, need_weights=links is not None)
            learned = self._weighted(_learned(real, out.certain), gold)
            # only while training: the loss of dev is that of the targets
            if self.teachers is not None and self.training:
                taught = self.teachers.probabilities(src, lengths, tgt_in, keep)
                options = (self.teachers.weight, self.smoothing, learned)
                loss = distillation_loss(out.logits, gold, taught, *options)
            else:
                loss = cross_entropy(out.logits, gold, self.smoothing, learned)
            return self._with_guide(_with_penalty(loss, out, real, passes=1), out, links, passes=1)
        # one pass over the batch twice: each row gets dropout of its own
        src, lengths, tgt_in = (torch.cat([x, x]) for x in (src, lengths, tgt_in))
        keep = torch.cat([keep, keep + tgt_out.numel()])
        out = self.model(src, lengths, tgt_in, keep=keep, need_weights=links is not None)
        certain = None if out.certain is None else out.certain[: len(gold)]
        learned = self._weighted(_learned(real, certain), gold)
        loss = rdrop_loss(out.logits, gold, self.smoothing, self.rdrop, learned)
        return self._with_guide(_with_penalty(loss, out, real, passes=2), out, links, passes=2)

    def _with_guide(
        self, loss: Tensor, out: ModelOutput, links: Tensor | None, *, passes: int
    ) -> Tensor:
        """Add the loss of the guide, which is the mean of so many passes over the batch."""
        if links is None:
            return loss
        return loss + self.guide_weight / passes * guide_loss(out, links.repeat(passes, 1, 1))

    def _weighted(self, learned: Tensor | None, gold: Tensor) -> Tensor | None:
        """Return how much each target counts; the loss of dev has no weights."""
        if self.class_weights is None or not self.training:
            return learned
        weights = self.class_weights[gold]
        return weights if learned is None else weights * learned


def _learned(real: Tensor | None, certain: Tensor | None) -> Tensor | None:
    """Return which targets count: those that are real, and not known beforehand.

    Label smoothing would charge a model for its certainty.
    """
    if certain is None:
        return real
    return ~certain if real is None else real & ~certain


def _with_penalty(
    loss: Tensor, out: ModelOutput, real: Tensor | None, passes: int
) -> Float[Tensor, ""]:
    """Return the loss with the model's penalty, averaged over the passes."""
    if out.penalty is None:
        return loss
    penalty = out.penalty if real is None else out.penalty * real.repeat(passes)
    return loss + penalty.sum() / passes


#: dtypes of the kernels, which compute in float32
TYPES: Final = (torch.float32, torch.bfloat16, torch.float16)
#: the compute capability that triton requires
OLDEST: Final = (8, 0)


def takes_kernels(logits: Tensor, real: Tensor | None = None) -> bool:
    """Return whether the Triton kernels can run, and the active backend allows them.

    They know no weights of targets.
    """
    if real is not None and real.dtype != torch.bool:
        return False
    if active_backend() not in ("auto", "triton") or torch.compiler.is_compiling():
        return False
    if not HAS_TRITON or logits.dtype not in TYPES or not logits.is_contiguous():
        return False
    return INTERPRETED or (logits.device.type == "cuda" and _works(logits.device))


def _check(logits: Tensor, target: Tensor, real: Tensor | None, *, passes: int) -> None:
    """Raise ArgumentError if lengths differ: kernels would read out of bounds."""
    sizes = {"logits": len(logits), "target": passes * len(target)}
    if real is not None:
        sizes["real"] = passes * len(real)
    if len(set(sizes.values())) > 1:
        rule = "have one row for each target token, in each pass"
        value = ", ".join(f"{name} for {size}" for name, size in sizes.items())
        fix = "give all of them for the same tokens"
        raise ArgumentError(" and ".join(sizes), rule, value, fix)


@cache
def _works(device: torch.device) -> bool:
    """Return whether kernels compile and run on a GPU, tried once on one row.

    Triton may be there without what it needs: a compiler for C, or the headers of Python. A model
    without any other kernel is still to train then.
    """
    if torch.cuda.get_device_capability(device) < OLDEST:
        return False
    row, gold = torch.zeros(1, 1, device=device), torch.zeros(1, dtype=torch.long, device=device)
    try:
        triton_cross_entropy(row, gold, 0.0, None)
    except torch.OutOfMemoryError:  # not the fault of the kernels
        raise
    except Exception as error:
        reason = (str(error) or type(error).__name__).partition("\n")[0]
        warnings.warn(f"losses run without their kernels, slower: {reason}", stacklevel=4)
        return False
    return True
