"""Size tables of the presets, what every preset is told, and the parts that several share."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter
from typing import Any, Final, Literal, NamedTuple, TypeVar, cast, get_args, get_type_hints

from torch import nn

from regard.attention import Attention, PositionBias, RelativeBuckets
from regard.errors import ArgumentError
from regard.layers import (
    LayerOptions,
    LearnedPositions,
    RNNStack,
    RotaryPositions,
    SelfAttentiveRNN,
    SinusoidalPositions,
    TransformerDecoder,
    TransformerEncoder,
)
from regard.layers.positions import RotaryScaling, SinusoidalLayout
from regard.layers.transformer import Activation, Norm
from regard.models.decoders import Decoder, RecurrentDecoder
from regard.models.embedding import TokenEmbedding
from regard.models.encoder_decoder import EncoderDecoder
from regard.models.encoders import (
    AttentionEncoder,
    Encoder,
    RecurrentEncoder,
    SelfAttentiveEncoder,
)
from regard.models.language_model import SelfAttentiveBody
from regard.ops.check import check_choice, check_positive, half_of
from regard.ops.recurrence.scores import Cell

Size = Literal["tiny", "small", "base"]

#: Shared embedding tables: none, target with output layer, source with target, or all three.
Tied = Literal["none", "output", "inputs", "all"]
#: The same for language models, which have no source.
TiedOutput = Literal["none", "output"]

#: What tells the layers of a Transformer the order of tokens.
Positions = Literal[
    "sinusoidal",
    "sinusoidal-halves",
    "sinusoidal-fairseq",
    "learned",
    "relative",
    "rotary",
    "none",
]
LAYOUTS: Final[dict[str, SinusoidalLayout]] = {
    "sinusoidal": "paired",
    "sinusoidal-halves": "halves",
    "sinusoidal-fairseq": "fairseq",
}

ModelT = TypeVar("ModelT", bound=nn.Module)


class RecurrentSize(NamedTuple):
    """Sizes of a recurrent model; `hidden` is the width of the decoder and of the memory."""

    embed: int
    hidden: int
    layers: int


class TransformerSize(NamedTuple):
    """Sizes of a Transformer."""

    dim: int
    heads: int
    feed_forward: int
    layers: int


class ConvolutionalSize(NamedTuple):
    """Sizes of a convolutional model."""

    dim: int
    layers: int
    kernel: int


class MemoryNetworkSize(NamedTuple):
    """Sizes of a memory network."""

    dim: int
    hops: int


class StoryTransformerSize(NamedTuple):
    """Sizes of a Transformer over sentences."""

    dim: int
    heads: int
    hops: int


RECURRENT: Final = {
    "tiny": RecurrentSize(64, 128, 1),
    "small": RecurrentSize(128, 256, 1),
    "base": RecurrentSize(256, 512, 2),
}
TRANSFORMER: Final = {
    "tiny": TransformerSize(128, 4, 256, 2),
    "small": TransformerSize(256, 4, 1024, 3),
    "base": TransformerSize(512, 8, 2048, 6),
}
CONVOLUTIONAL: Final = {
    "tiny": ConvolutionalSize(128, 3, 3),
    "small": ConvolutionalSize(256, 4, 3),
    "base": ConvolutionalSize(512, 8, 3),
}
MEMORY_NETWORK: Final = {
    "tiny": MemoryNetworkSize(20, 3),
    "small": MemoryNetworkSize(50, 3),
    "base": MemoryNetworkSize(128, 4),
}
STORY_TRANSFORMER: Final = {
    "tiny": StoryTransformerSize(32, 2, 3),
    "small": StoryTransformerSize(128, 4, 4),
    "base": StoryTransformerSize(256, 8, 6),
}


class TransformerOptions(NamedTuple):
    """Options that all presets of Transformers take; see `LayerOptions` for those of its layers.

    Attributes:
        positions: added to the embeddings, or known to the attention (relative, rotary).
        max_positions: number of learned positions.
        buckets: of relative positions, with `max_distance`, see `RelativeBuckets`.
        rotary_scaling: the four numbers of `RotaryScaling`.
        embed_scale: factor of the embeddings; `dim ** 0.5` if None.
        embed_norm: whether embeddings with their positions are normalised.
        embed: width of the embeddings, if it is not that of the layers.
        repeats: times that the layers of an encoder are run.
        output_bias: whether the biases of the logits are learned, or stay as they are.
        bos_as_eos: whether `bos` has the vector of `eos`.
    """

    norm: Norm = "layer"
    norm_first: bool = True
    eps: float = 1e-5
    activation: Activation = "relu"
    gated: bool = False
    bias: bool = True
    qkv_bias: bool | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    window: int | None = None
    positions: Positions = "sinusoidal"
    max_positions: int = 1024
    buckets: int = 32
    max_distance: int = 128
    rotary_base: float = 10000.0
    rotary_scaling: Sequence[float] | None = None
    embed_scale: float | None = None
    embed_norm: bool = False
    embed: int | None = None
    repeats: int = 1
    attention_dropout: float | None = None
    output_bias: bool = True
    bos_as_eos: bool = False

    def layers(self, n: TransformerSize, dropout: float) -> LayerOptions:
        """Return the options of the layers."""
        check_choice("positions", self.positions, get_args(Positions))
        rotation, shared_bias = None, None
        if self.positions == "rotary":
            scaling = None if self.rotary_scaling is None else RotaryScaling(*self.rotary_scaling)
            width = n.dim // n.heads if self.head_dim is None else self.head_dim
            rotation = RotaryPositions(width, base=self.rotary_base, scaling=scaling)
        if self.positions == "relative":
            sizes = {"buckets": self.buckets, "max_distance": self.max_distance}

            def shared_bias(causal: bool) -> PositionBias:
                return RelativeBuckets(n.heads, causal=causal, **sizes)

        same = {name: getattr(self, name) for name in LayerOptions._fields if name in self._fields}
        return LayerOptions(
            dropout=dropout,
            num_kv_heads=self.kv_heads,
            rotation=rotation,
            shared_bias=shared_bias,
            **same,
        )

    def embedding_parts(self, dim: int) -> dict[str, Any]:
        """Return the arguments of a `TokenEmbedding` that gives layers vectors of width `dim`."""
        width = dim if self.embed is None else self.embed
        positions: nn.Module | None = None
        if self.positions in LAYOUTS:
            positions = SinusoidalPositions(width, LAYOUTS[self.positions])
        elif self.positions == "learned":
            positions = LearnedPositions(self.max_positions, width)
        norm = LayerOptions(norm=self.norm, eps=self.eps, bias=self.bias).new_norm(width)
        return {
            "dim": width,
            "positions": positions,
            "scale": width**0.5 if self.embed_scale is None else self.embed_scale,
            "norm": norm if self.embed_norm else None,
            "bos_as_eos": self.bos_as_eos,
            "projection": None if self.embed is None else nn.Linear(width, dim),
        }


DEFAULT_OPTIONS: Final = TransformerOptions()


def sizes(table: Mapping[str, Any], size: str, changes: Mapping[str, int | None]) -> Any:
    """Return the row `size` of a table, with the entries that are not None replaced."""
    check_choice("size", size, table)
    given = {name: value for name, value in changes.items() if value is not None}
    check_positive(**given)
    return table[size]._replace(**given)


@dataclass(frozen=True)
class Parts:
    """The settings that every preset is told, and parts made of them; `n` is a row of its sizes."""

    src_vocab: int
    tgt_vocab: int
    n: Any
    dropout: float
    word_dropout: float
    cell: Cell = "lstm"
    tied: Tied = "none"
    options: TransformerOptions = DEFAULT_OPTIONS

    def embedding(self, name: str = "src", dim: int | None = None, **more: Any) -> TokenEmbedding:
        """Token embeddings of the source, or of the target under any other name."""
        return TokenEmbedding(
            self.src_vocab if name == "src" else self.tgt_vocab,
            self.n.embed if dim is None else dim,
            dropout=self.dropout,
            word_dropout=self.word_dropout,
            name=name,
            **more,
        )

    def placed_embedding(self, name: str = "src") -> TokenEmbedding:
        """Token embeddings with positions, as a Transformer's options say."""
        return self.embedding(name, **self.options.embedding_parts(self.n.dim))

    @property
    def layer_options(self) -> LayerOptions:
        """The options of a Transformer's layers."""
        return self.options.layers(self.n, self.dropout)

    def stack(self, inputs: int | None = None) -> RNNStack:
        """RNN layers over embeddings, or over vectors of another width."""
        n, width = self.n, self.n.embed if inputs is None else inputs
        return RNNStack(width, n.hidden, cell=self.cell, num_layers=n.layers, dropout=self.dropout)

    def self_attentive_body(self) -> SelfAttentiveBody:
        """A stack of self-attentive RNNs."""
        n = self.n
        layers = [
            SelfAttentiveRNN(width, n.hidden, cell=self.cell)
            for width in [n.embed] + [2 * n.hidden] * (n.layers - 1)
        ]
        return SelfAttentiveBody(layers, dropout=self.dropout)

    def bidirectional_encoder(self, layers: int | None = None) -> RecurrentEncoder:
        """A bidirectional RNN; each direction has half of the width."""
        stack = RNNStack(
            self.n.embed,
            half_of(hidden=self.n.hidden),
            cell=self.cell,
            num_layers=self.n.layers if layers is None else layers,
            bidirectional=True,
            dropout=self.dropout,
        )
        return RecurrentEncoder(self.embedding(), stack)

    def self_attentive_encoder(self) -> SelfAttentiveEncoder:
        """A self-attentive RNN over source tokens."""
        return SelfAttentiveEncoder(self.embedding(), self.self_attentive_body())

    def transformer_encoder(self, layers: int | None = None) -> AttentionEncoder:
        """A Transformer encoder."""
        n, repeats = self.n, self.options.repeats
        sizes = n.dim, n.heads, n.feed_forward, n.layers if layers is None else layers
        encoder = TransformerEncoder(*sizes, self.layer_options, repeats=repeats)
        return AttentionEncoder(self.placed_embedding(), encoder)

    def transformer_decoder(self, memory_size: int | None) -> TransformerDecoder:
        """A Transformer decoder, which attends to a memory unless its size is None."""
        n = self.n
        sizes = n.dim, n.heads, n.feed_forward, n.layers
        return TransformerDecoder(*sizes, self.layer_options, memory_size=memory_size)

    def recurrent_model(
        self,
        attention: Attention | None,
        *,
        extra_context: int = 0,
        encoder_layers: int | None = None,
    ) -> EncoderDecoder:
        """A bidirectional encoder and a recurrent decoder.

        A context is `extra_context` wider than what attention returns, for decoders that append to
        it.
        """
        encoder = self.bidirectional_encoder(encoder_layers)
        context = self.n.hidden + extra_context
        decoder = RecurrentDecoder(
            self.embedding("tgt"),
            self.stack(self.n.embed + context),
            attention,
            context_size=context,
            summary_size=self.n.hidden,
            dropout=self.dropout,
            tied=self.ties_output,
        )
        return self.joined(encoder, decoder)

    @property
    def ties_output(self) -> bool:
        """Return whether the output layer is tied; raises if vocabularies differ that must not."""
        if self.ties_source and self.src_vocab != self.tgt_vocab:
            raise ArgumentError(
                "tied",
                "be 'all' only where source and target have one vocabulary",
                f"'{self.tied}' with {self.src_vocab} source and {self.tgt_vocab} target tokens",
                "train with shared_vocab=true, or say tied=output",
            )
        return self.tied in ("output", "all")

    @property
    def output_options(self) -> dict[str, bool]:
        """The options of a Transformer's output layer."""
        return {"tied": self.ties_output, "learns_bias": self.options.output_bias}

    @property
    def ties_source(self) -> bool:
        """Return whether source and target share one table."""
        return self.tied in ("inputs", "all")

    def joined(self, encoder: Encoder, decoder: Decoder) -> EncoderDecoder:
        """An encoder-decoder whose source has the target's table if it is tied."""
        if self.ties_source:
            source = cast(TokenEmbedding, encoder.embedding)
            source.share(cast(TokenEmbedding, decoder.embedding))
        return EncoderDecoder(encoder, decoder)

    def check_shared_vocabulary(self, preset: str) -> None:
        """Raises unless source and target share one vocabulary, which copying needs."""
        if self.src_vocab != self.tgt_vocab:
            raise ArgumentError(
                f"the vocabularies of the preset {preset}",
                "be one, since tokens are copied by their ids",
                f"of {self.src_vocab} source and {self.tgt_vocab} target tokens",
                "train with shared_vocab=true",
            )


def preset(
    table: Mapping[str, Any],
    *,
    target: str = "tgt_vocab",
    cell: Cell | None = None,
    dropout: float = 0.1,
    tied: Any = None,
) -> Callable[[Callable[..., ModelT]], Callable[..., ModelT]]:
    """Make a preset of a function of `Parts` and of options of its own.

    The preset takes both vocabularies and a size, and by name the entries of its size table, what
    all presets are told, and these options.

    Args:
        table: of sizes.
        target: the name of the second vocabulary.
        cell: the recurrence by default; None for a preset without one.
        dropout: the default.
        tied: the type of the setting `tied`; None for a preset without it.
    """
    told = [("cell", Cell, cell)] * (cell is not None) + [("dropout", float, dropout)]
    last = [("word_dropout", float, 0.0), *[("tied", tied, "none")] * (tied is not None)]
    by_name = Parameter.KEYWORD_ONLY
    types = get_type_hints(TransformerOptions) if table is TRANSFORMER else {}
    common = [(name, kind, getattr(DEFAULT_OPTIONS, name)) for name, kind in types.items()]

    def listed(rows: list[tuple[str, Any, Any]]) -> list[Parameter]:
        return [Parameter(name, by_name, annotation=kind, default=at) for name, kind, at in rows]

    def decorate(build: Callable[..., ModelT]) -> Callable[..., ModelT]:
        own = [p for p in inspect.signature(build).parameters.values() if p.kind == by_name]
        vocabularies = [
            Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, annotation=int)
            for name in ("src_vocab", target)
        ]
        size = Parameter("size", Parameter.POSITIONAL_OR_KEYWORD, annotation=Size, default="small")
        entries = list(table["small"]._fields)
        rows = listed([(name, int | None, None) for name in entries])
        signature = inspect.Signature(
            [*vocabularies, size, *rows, *listed(told), *own, *listed(common), *listed(last)]
        )

        @functools.wraps(build)
        def made(*args: Any, **settings: Any) -> ModelT:
            bound = signature.bind(*args, **settings)
            bound.apply_defaults()
            given = bound.arguments
            if tied is not None:
                check_choice("tied", given["tied"], get_args(tied))
            n = sizes(table, given["size"], {name: given[name] for name in entries})
            shared = {name: given[name] for name, _, _ in (*told, *last)}
            options = TransformerOptions(**{name: given[name] for name in types})
            parts = Parts(given["src_vocab"], given[target], n, options=options, **shared)
            return build(parts, **{option.name: given[option.name] for option in own})

        made.__signature__ = signature  # type: ignore[attr-defined]
        return made

    return decorate
