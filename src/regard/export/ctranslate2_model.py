"""A Transformer as CTranslate2 has it (https://github.com/OpenNMT/CTranslate2), and its check."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, cast

import torch
from ctranslate2.specs import TransformerSpec
from ctranslate2.specs.common_spec import Activation
from torch import Tensor, nn

from regard import ops
from regard.attention import MultiHeadAttention
from regard.decoding import DecodingOptions, decode
from regard.errors import ExportError
from regard.export.translate import Translator
from regard.layers.transformer import (
    FeedForward,
    Residual,
    TransformerDecoder,
    TransformerDecoderLayer,
    TransformerEncoder,
    TransformerEncoderLayer,
    unusual_option,
)
from regard.models import EncoderDecoder
from regard.models.decoders import AttentionDecoder
from regard.models.embedding import TokenEmbedding
from regard.models.encoders import AttentionEncoder
from regard.models.protocol import inference
from regard.symbols import BOS, EOS, UNK
from regard.training import Saved

#: rows of the table of positions, which CTranslate2 keeps in the model
MAX_POSITIONS: Final = 1024
ACTIVATIONS: Final = {
    "relu": Activation.RELU,
    "gelu": Activation.GELU,
    "gelu-tanh": Activation.GELUTanh,
    "silu": Activation.SWISH,
}
TOLERANCE: Final = 1e-4
#: lengths of the sources that are compared, eos included, which alone CTranslate2 does not read
LENGTHS: Final = (6, 3, 9, 2, 17, 5)


def write_model(saved: Saved, run: Path, folder: Path) -> None:
    """Write the weights of a run of the preset `transformer` as CTranslate2 reads them."""
    source, encoder, decoder = _parts(saved, run)
    layers = cast(Sequence[TransformerDecoderLayer], decoder.decoder.layers)
    first = layers[0]
    spec = TransformerSpec.from_config(
        (len(encoder.layers), len(layers)),
        first.attention.num_heads,
        pre_norm=first.attention_residual.norm_first,
        activation=ACTIVATIONS[first.feed_forward.activation],
    )
    with torch.no_grad():
        _embedding(spec.encoder, spec.encoder.embeddings[0], source)
        _embedding(spec.decoder, spec.decoder.embeddings, decoder.embedding)
        _stack(spec.encoder, encoder)
        _stack(spec.decoder, decoder.decoder)
        own = decoder.output.weight
        spec.decoder.projection.weight = _array(
            decoder.embedding.table.weight if own is None else own
        )
        spec.decoder.projection.bias = _array(decoder.output.bias)
    # ids as text: two pieces of a tokenizer may look the same, and none can be mistaken for them
    spec.register_source_vocabulary([str(i) for i in range(source.vocab)])
    spec.register_target_vocabulary([str(i) for i in range(decoder.embedding.vocab)])
    spec.config.unk_token, spec.config.bos_token, spec.config.eos_token = map(str, (UNK, BOS, EOS))
    spec.config.decoder_start_token = str(BOS)
    spec.config.layer_norm_epsilon = first.attention_residual.norm.eps
    spec.validate()
    spec.optimize()
    spec.save(str(folder))


def _parts(saved: Saved, run: Path) -> tuple[TokenEmbedding, TransformerEncoder, AttentionDecoder]:
    """Return the parts of a model; raises ExportError for one that CTranslate2 cannot run."""
    model = saved.sequence_model
    if (
        isinstance(model, EncoderDecoder)
        and isinstance(model.encoder, AttentionEncoder)
        and isinstance(model.encoder.embedding, TokenEmbedding)
        and isinstance(model.decoder, AttentionDecoder)
    ):
        source, stack, decoder = model.encoder.embedding, model.encoder.encoder, model.decoder
        option = unusual_option(stack) or unusual_option(decoder.decoder)
        option = option or source.unusual_option or decoder.embedding.unusual_option
        option = option or ("bos_as_eos" if decoder.embedding.bos_as_eos else None)
        option = option or ("prefix" if saved.task.target.prefix else None)
        if option is None and source.positions is not None:
            return source, stack, decoder
        raise ExportError(
            f"a model for CTranslate2 must be a plain Transformer, but {run} has the option "
            f"{option or 'positions'}: export it with `--to onnx`."
        )
    raise ExportError(
        f"a model for CTranslate2 must be a Transformer that reads text (preset transformer), but "
        f"{run} is {saved.config.preset}: export it with `--to onnx`."
    )


def _embedding(spec: Any, table: Any, embedding: TokenEmbedding) -> None:
    """Write token vectors with their factor in them, and the vectors of all positions."""
    table.weight = _array(embedding.table.weight * embedding.scale)
    spec.scale_embeddings = False
    assert embedding.positions is not None
    zeros = torch.zeros(1, MAX_POSITIONS, embedding.dim)
    spec.position_encodings.encodings = _array(embedding.positions(zeros)[0])


def _stack(spec: Any, stack: TransformerEncoder | TransformerDecoder) -> None:
    """Write the layers of an encoder or a decoder, and the norm after them."""
    for own, layer in zip(spec.layer, stack.layers, strict=True):
        assert isinstance(layer, TransformerEncoderLayer | TransformerDecoderLayer)
        _self_attention(own.self_attention, layer.attention, layer.attention_residual)
        if isinstance(layer, TransformerDecoderLayer):
            assert layer.cross is not None
            assert layer.cross_residual is not None
            _cross_attention(own.attention, layer.cross, layer.cross_residual)
        _feed_forward(own.ffn, layer.feed_forward, layer.feed_forward_residual)
    if stack.norm is not None:
        _norm(spec.layer_norm, stack.norm)


def _self_attention(spec: Any, attention: MultiHeadAttention, around: Residual) -> None:
    _linear(spec.linear[0], attention.query_proj, attention.key_proj, attention.value_proj)
    _linear(spec.linear[1], attention.out_proj)
    _norm(spec.layer_norm, around.norm)


def _cross_attention(spec: Any, attention: MultiHeadAttention, around: Residual) -> None:
    _linear(spec.linear[0], attention.query_proj)
    _linear(spec.linear[1], attention.key_proj, attention.value_proj)
    _linear(spec.linear[2], attention.out_proj)
    _norm(spec.layer_norm, around.norm)


def _feed_forward(spec: Any, block: FeedForward, around: Residual) -> None:
    _linear(spec.linear_0, block.inner)
    _linear(spec.linear_1, block.outer)
    _norm(spec.layer_norm, around.norm)


def _linear(spec: Any, *maps: nn.Linear) -> None:
    """Write linear maps of the same input as one."""
    spec.weight = _array(torch.cat([one.weight for one in maps]))
    zeros = (one.weight.new_zeros(one.out_features) for one in maps)
    both = zip(maps, zeros, strict=True)
    spec.bias = _array(torch.cat([none if one.bias is None else one.bias for one, none in both]))


def _norm(spec: Any, norm: nn.Module) -> None:
    gamma, beta = cast(Tensor, norm.weight), cast(Tensor | None, norm.bias)
    spec.gamma, spec.beta = _array(gamma), _array(torch.zeros_like(gamma) if beta is None else beta)


def _array(values: Tensor) -> Any:
    return values.detach().float().contiguous().numpy()


def verify_engine(saved: Saved, folder: Path) -> float:
    """Return the largest difference of a log-probability.

    Greedy search of both must find the same tokens, for all sources at once, of which some are
    padded, and for each alone; and both must score them alike. Raises ExportError if not.
    """
    inputs = saved.task.input.graph_inputs()
    lengths = torch.tensor(LENGTHS)
    src = inputs.draw(lengths, torch.Generator().manual_seed(1))
    rows = [row[:length].tolist() for row, length in zip(src, LENGTHS, strict=True)]
    with inference(saved.sequence_model), ops.use_backend("reference"):
        found = [
            one[0] for one in decode(saved.sequence_model, src, lengths, DecodingOptions(beam=1))
        ]
    engine = Translator(folder)
    together = [ids for ids, _ in engine.search(rows, beam=1)]
    alone = [engine.search([row], beam=1)[0][0] for row in rows]
    expected = [one.tokens for one in found]
    targets = [list(map(str, one.tokens)) for one in found]
    sources = [list(map(str, row)) for row in rows]
    scored = engine.engine.score_batch(sources, targets, max_input_length=0)
    worst = max(
        float(abs(own - theirs))
        for one, result in zip(found, scored, strict=True)
        for own, theirs in zip(one.token_log_probs, result.log_probs, strict=True)
    )
    other = sum(ids != own for ids, own in zip(together + alone, expected * 2, strict=True))
    if other or not worst <= TOLERANCE:  # NaN fails too
        raise ExportError(
            f"CTranslate2 must find the model's tokens with its log-probabilities within "
            f"{TOLERANCE:g}, but {other} of {2 * len(rows)} predictions differ, and "
            f"log-probabilities by {worst:.2g}, so that nothing was kept: report it with the "
            f"versions of torch and ctranslate2."
        )
    return worst
