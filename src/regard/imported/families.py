"""Families of models of transformers: the options that make a preset of regard compute the same.

A family is a table: the names of its modules in the order of ours, the options that follow from its
config.json, and what its configuration must say. What its weights mean otherwise is undone by
`unpack` and done again by `pack`, on a dictionary of tensors.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor

from regard.errors import RegardError
from regard.layers import SinusoidalPositions

Weights = dict[str, Tensor]
Options = dict[str, Any]

#: activations by their names in transformers
ACTIVATIONS: Final = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_fast": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "silu": "silu",
    "swish": "silu",
}
#: modules of a layer, in the order in which a family names its own
LAYER: Final = (
    *(f"attention.{part}_proj" for part in ("query", "key", "value", "out")),
    *("attention_residual.norm", "feed_forward.inner", "feed_forward.outer"),
    *("feed_forward_residual.norm", "feed_forward.gate"),
)
CROSS: Final = (*(f"cross.{part}_proj" for part in ("query", "key", "value", "out")),)
CROSS_LAYER: Final = (*CROSS, "cross_residual.norm")
NUMBER: Final = re.compile(r"\.(\d+)\.")
#: the modules of a preset by what tables call them
ROOTS: Final = {
    "lm-transformer": {
        "": "language.embedding",
        "decoder": "language.body.decoder",
        "output": "language.output",
    },
    "classifier-transformer": {
        "": "classifier.encoder.embedding",
        "encoder": "classifier.encoder.encoder",
    },
    "transformer": {
        "": "decoder.embedding",
        "source": "encoder.embedding",
        "encoder": "encoder.encoder",
        "target": "decoder.embedding",
        "decoder": "decoder.decoder",
        "output": "decoder.output",
    },
}


class ImportRefusedError(RegardError):
    """A model of transformers that regard's own layers do not compute."""


def _same(weights: Weights, config: Any) -> Weights:
    return weights


@dataclass(frozen=True)
class ModelFamily:
    """A family of models, by its name in config.json.

    Attributes:
        classes: of its models; what is exported is of the first.
        preset: that computes the same.
        names: of its modules, by ours.
        options: of the preset, from a configuration.
        fixed: what a configuration must say, if it says anything.
        spare: tensors that have no part in it, or repeat others.
        offset: positions before the first.
        unpack: brings tensors to our meaning.
        pack: undoes that.
        prefix: what the names of some folders begin with.
        reads: "text", "pictures" or "sounds".
    """

    classes: tuple[str, ...]
    preset: str
    names: Mapping[str, str]
    options: Callable[[Any], Options]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    spare: str = r"$^"
    offset: int = 0
    unpack: Callable[[Weights, Any], Weights] = _same
    pack: Callable[[Weights, Any], Weights] = _same
    prefix: str = ""
    reads: str = "text"

    def theirs(self, name: str) -> str | None:
        """Return the name of a tensor of the preset in this family; None if it has none."""
        number = NUMBER.search(name)
        pattern = NUMBER.sub(".{}.", name, count=1)
        stem, _, kind = pattern.rpartition(".")
        found = self._modules.get(pattern)
        if found is None:
            module = self._modules.get(stem)
            found = None if module is None else f"{module}.{kind}"
        elif kind == "table":
            found += ".weight"
        return None if found is None else found.format(number and number[1])

    @cached_property
    def _modules(self) -> dict[str, str]:
        """The names of modules, by ours."""
        roots = ROOTS[self.preset]
        split = ((*own.split(":"), theirs) for own, theirs in self.names.items())
        return {f"{roots[part]}.{rest}".rstrip("."): theirs for part, rest, theirs in split}

    def refusal(self, config: Any) -> str:
        """Return what of a configuration regard's layers do not compute; "" if they do."""
        for name, value in self.fixed.items():
            given = getattr(config, name, value)
            if given != value and given is not None:
                return f"its setting {name} is {given!r:.60}"
        return ""


def _layers(stack: str, root: str, parts: str, cross: str = "") -> dict[str, str]:
    """Return the names of the layers of a stack; `{}` stands for the number of a layer."""
    pairs = [*zip(LAYER, parts.split(), strict=False)]
    pairs += [*zip(CROSS_LAYER, cross.split(), strict=False)]
    return {f"{stack}:layers.{{}}.{own}": f"{root}.{theirs}" for own, theirs in pairs}


def activation(name: str) -> str:
    """Return the name of an activation; raises ImportRefusedError for one that regard lacks."""
    if name not in ACTIVATIONS:
        raise ImportRefusedError(f"its activation is {name!r:.40}")
    return ACTIVATIONS[name]


def _rotary(config: Any) -> Options:
    """Return the options of rotary positions."""
    rope = dict(getattr(config, "rope_parameters", None) or {})
    kind = rope.get("rope_type", "default")
    names = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    scaled = kind == "llama3" and all(isinstance(rope.get(name), int | float) for name in names)
    if not (scaled or kind == "default") or rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise ImportRefusedError(f"its rotary positions are {rope!r:.120}")
    found = {"positions": "rotary", "rotary_base": float(rope.get("rope_theta", 10000.0))}
    return found | ({"rotary_scaling": [float(rope[name]) for name in names]} if scaled else {})


def _options_of(config: Any, pairs: str) -> Options:
    """Return options by the names of settings: `ours=theirs`, with spaces between them."""
    named = (pair.split("=") for pair in pairs.split())
    return {own: getattr(config, theirs) for own, theirs in named}


SIZES: Final = """
    dim=hidden_size heads=num_attention_heads feed_forward=intermediate_size
    layers=num_hidden_layers
"""


def _llama(config: Any, **own: Any) -> Options:
    head_dim = getattr(config, "head_dim", None)
    found = _options_of(config, f"{SIZES} kv_heads=num_key_value_heads eps=rms_norm_eps")
    return {
        **found,
        "head_dim": head_dim or found["dim"] // found["heads"],
        "norm": "rms",
        "activation": activation(config.hidden_act),
        "gated": True,
        "bias": False,
        "embed_scale": 1.0,
        "tied": "output" if config.tie_word_embeddings else "none",
        "dropout": 0.0,
        "attention_dropout": config.attention_dropout,
        **_rotary(config),
        **own,
    }


def _gpt2(config: Any) -> Options:
    sizes = "dim=n_embd heads=n_head layers=n_layer max_positions=n_positions"
    rates = "eps=layer_norm_epsilon dropout=resid_pdrop attention_dropout=attn_pdrop"
    return {
        **_options_of(config, f"{sizes} {rates}"),
        "feed_forward": config.n_inner or 4 * config.n_embd,
        "activation": activation(config.activation_function),
        "positions": "learned",
        "embed_scale": 1.0,
        "tied": "output" if config.tie_word_embeddings else "none",
    }


def _split_gpt2(weights: Weights, config: Any) -> Weights:
    """Transpose matrices, and split those of queries, keys and values."""
    found: Weights = {}
    for name, weight in weights.items():
        is_matrix = re.search(r"(c_attn|c_proj|c_fc)\.weight$", name) and weight.dim() == 2
        own = weight.t() if is_matrix else weight
        if "c_attn" in name:
            parts = zip("qkv", own.chunk(3), strict=False)
            found |= {name.replace("c_attn", letter): part for letter, part in parts}
        else:
            found[name] = own
    return found


def _join_gpt2(weights: Weights, config: Any) -> Weights:
    found: Weights = {}
    for name, weight in weights.items():
        if match := re.search(r"attn\.([qkv])\.", name):
            if match[1] == "q":
                names = [name.replace("attn.q.", f"attn.{letter}.") for letter in "qkv"]
                joined = torch.cat([weights[one] for one in names])
                found[name.replace("attn.q.", "attn.c_attn.")] = joined.t()
        elif re.search(r"(c_proj|c_fc)\.weight$", name):
            found[name] = weight.t()
        else:
            found[name] = weight
    return found


def _shift_norms(weights: Weights, config: Any, *, by: float) -> Weights:
    """Add a number to all weights of norms, which Gemma stores as their distance from 1."""
    return {n: w + by if n.endswith("norm.weight") else w for n, w in weights.items()}


ENCODER: Final = {
    "norm_first": False,
    "positions": "learned",
    "embed_scale": 1.0,
    "embed_norm": True,
}


RATES: Final = "dropout=hidden_dropout_prob attention_dropout=attention_probs_dropout_prob"


def _bert(config: Any, **own: Any) -> Options:
    found = _options_of(config, f"{SIZES} {RATES} eps=layer_norm_eps")
    places = {"max_positions": config.max_position_embeddings}
    return found | ENCODER | places | {"activation": activation(config.hidden_act)} | own


def _roberta(config: Any) -> Options:
    return _bert(config, max_positions=config.max_position_embeddings - 2)


def _vit(config: Any) -> Options:
    sizes = (config.image_size, config.patch_size)
    if not all(isinstance(size, int) for size in sizes) or sizes[0] % sizes[1]:
        raise ImportRefusedError(f"its pictures and patches are {sizes!r:.60}")
    found = _options_of(config, f"{SIZES} {RATES} eps=layer_norm_eps qkv_bias=qkv_bias")
    own = {"positions": "none", "max_positions": 1, "activation": activation(config.hidden_act)}
    return found | own


def _albert(config: Any) -> Options:
    repeats = {"layers": 1, "repeats": config.num_hidden_layers}
    return _bert(config, embed=config.embedding_size, **repeats)


def _distilbert(config: Any) -> Options:
    sizes = "dim=dim heads=n_heads feed_forward=hidden_dim layers=n_layers"
    rates = "dropout=dropout attention_dropout=attention_dropout"
    found = _options_of(config, f"{sizes} {rates} max_positions=max_position_embeddings")
    return found | ENCODER | {"eps": 1e-12, "activation": activation(config.activation)}


TYPES: Final = "embeddings.token_type_embeddings.weight"
PLACES: Final = "embeddings.position_embeddings.weight"


def _add_types(weights: Weights, config: Any) -> Weights:
    """Add the vector of a first text to all positions."""
    rest = {name: weight for name, weight in weights.items() if name != TYPES}
    if TYPES in weights and PLACES in weights:
        rest[PLACES] = weights[PLACES] + weights[TYPES][0]
    return rest


CLASS_TOKEN, VIT_PLACES = "embeddings.cls_token", "embeddings.position_embeddings"


def _flat_places(weights: Weights, config: Any) -> Weights:
    """Take away the axes of size 1 of a class token and of positions, which are no parameter."""
    own = {CLASS_TOKEN: CLASS_TOKEN, VIT_PLACES: PLACES}
    return {own.get(n, n): w.squeeze((0, 1)) if n in own else w for n, w in weights.items()}


def _deep_places(weights: Weights, config: Any) -> Weights:
    own = {CLASS_TOKEN: CLASS_TOKEN, PLACES: VIT_PLACES}
    deep = {name: weight.reshape(1, -1, weight.shape[-1]) for name, weight in weights.items()}
    return {own.get(n, n): deep[n] if n in own else w for n, w in weights.items()}


def _zero_types(weights: Weights, config: Any) -> Weights:
    """Add vectors of texts, which positions hold already."""
    types = weights[PLACES].new_zeros(config.type_vocab_size, weights[PLACES].shape[1])
    return {**weights, TYPES: types}


def _bart(config: Any, **own: Any) -> Options:
    """Return the options of BART and of its relatives."""
    if config.encoder_attention_heads != config.decoder_attention_heads:
        raise ImportRefusedError("encoder and decoder have different numbers of heads")
    if config.encoder_ffn_dim != config.decoder_ffn_dim:
        raise ImportRefusedError("encoder and decoder have feed-forward blocks of different widths")
    sizes = "dim=d_model heads=decoder_attention_heads feed_forward=decoder_ffn_dim"
    sizes += " layers=decoder_layers encoder_layers=encoder_layers"
    return {
        **_options_of(config, f"{sizes} dropout=dropout attention_dropout=attention_dropout"),
        "activation": activation(config.activation_function),
        "embed_scale": config.d_model**0.5 if config.scale_embedding else 1.0,
        "tied": "all" if config.tie_word_embeddings else "inputs",
        **own,
    }


def _learned(config: Any, **own: Any) -> Options:
    places = {"positions": "learned", "max_positions": config.max_position_embeddings}
    return _bart(config, **places, embed_norm=True, **own)


def _whisper(config: Any) -> Options:
    """Return the options of Whisper, whose source has an input of its own."""
    tied = "output" if config.tie_word_embeddings else "none"
    places = {"positions": "learned", "max_positions": config.max_target_positions}
    return _bart(config, **places, tied=tied)


def _add_key_biases(weights: Weights, config: Any) -> Weights:
    """Add biases of keys, which change no weight of an attention."""
    keys = {n: w for n, w in weights.items() if n.endswith(".k_proj.weight")}
    biases = {n.replace("weight", "bias"): w.new_zeros(len(w)) for n, w in keys.items()}
    return weights | biases


def _drop_key_biases(weights: Weights, config: Any) -> Weights:
    """Leave them out, and add the positions of the source, which are no weights here."""
    sines = SinusoidalPositions(config.d_model, "whisper")
    places = sines(torch.zeros(1, config.max_source_positions, config.d_model))[0]
    rest = {n: w for n, w in weights.items() if not n.endswith(".k_proj.bias")}
    return rest | {"model.encoder.embed_positions.weight": places}


def _t5(config: Any) -> Options:
    sizes = "dim=d_model heads=num_heads head_dim=d_kv feed_forward=d_ff"
    sizes += " layers=num_decoder_layers encoder_layers=num_layers dropout=dropout_rate"
    places = "buckets=relative_attention_num_buckets max_distance=relative_attention_max_distance"
    return {
        **_options_of(config, f"{sizes} {places} eps=layer_norm_epsilon"),
        "norm": "rms",
        "activation": activation(config.dense_act_fn),
        "gated": config.is_gated_act,
        "bias": False,
        "positions": "relative",
        "embed_scale": 1.0,
        "tied": "all" if config.tie_word_embeddings else "inputs",
    }


def _scale_t5(weights: Weights, config: Any, *, back: bool = False) -> Weights:
    """Scale queries, which T5 does not divide, and the last norm, after which it does."""
    times = config.d_kv**0.5, config.d_model**-0.5
    by = {"Attention.q.weight": times[0]}
    if getattr(config, "scale_decoder_outputs", False):
        by["decoder.final_layer_norm.weight"] = times[1]
    one, other = (".wi.", ".wi_1.")
    if back:
        by, one, other = {name: 1 / factor for name, factor in by.items()}, other, one
    found = {}
    for name, weight in weights.items():
        factor = next((factor for end, factor in by.items() if name.endswith(end)), None)
        new = name if config.is_gated_act else name.replace(one, other)
        found[new] = weight if factor is None else weight * factor
    return found


LLAMA_LAYER: Final = """
    self_attn.q_proj self_attn.k_proj self_attn.v_proj self_attn.o_proj input_layernorm
    mlp.up_proj mlp.down_proj post_attention_layernorm mlp.gate_proj
"""
LLAMA_NAMES: Final = {
    ":table": "model.embed_tokens",
    **_layers("decoder", "model.layers.{}", LLAMA_LAYER),
    "decoder:norm": "model.norm",
    "output:": "lm_head",
}
LLAMA: Final[dict[str, Any]] = {"spare": r"lm_head\.weight|.*\.rotary_emb\.inv_freq"}
GPT2_LAYER: Final = "attn.q attn.k attn.v attn.c_proj ln_1 mlp.c_fc mlp.c_proj ln_2"
BERT_LAYER: Final = """
    attention.self.query attention.self.key attention.self.value attention.output.dense
    attention.output.LayerNorm intermediate.dense output.dense output.LayerNorm
"""
ALBERT_LAYER: Final = """
    attention.query attention.key attention.value attention.dense attention.LayerNorm
    ffn ffn_output full_layer_layer_norm
"""
EMBEDDINGS: Final = {
    ":table": "embeddings.word_embeddings",
    ":positions.table": "embeddings.position_embeddings",
    ":norm": "embeddings.LayerNorm",
}
BERT_NAMES: Final = {**EMBEDDINGS, **_layers("encoder", "encoder.layer.{}", BERT_LAYER)}
VIT_LAYER: Final = """
    attention.attention.query attention.attention.key attention.attention.value
    attention.output.dense layernorm_before intermediate.dense output.dense layernorm_after
"""
DISTILBERT_LAYER: Final = """
    attention.q_lin attention.k_lin attention.v_lin attention.out_lin sa_layer_norm
    ffn.lin1 ffn.lin2 output_layer_norm
"""
HEADS: Final = (
    r"(.*\.)?(pooler|cls|classifier|pre_classifier|qa_outputs|lm_head|predictions|vocab_transform|"
    r"vocab_projector|vocab_layer_norm|sop_classifier|embeddings\.position_ids)\b.*"
)
ENCODES: Final = (
    *("Model", "ForMaskedLM", "ForPreTraining", "ForSequenceClassification"),
    *("ForTokenClassification", "ForQuestionAnswering"),
)
BART_LAYER: Final = """
    self_attn.q_proj self_attn.k_proj self_attn.v_proj self_attn.out_proj self_attn_layer_norm
    fc1 fc2 final_layer_norm
"""
BART_CROSS: Final = """
    encoder_attn.q_proj encoder_attn.k_proj encoder_attn.v_proj encoder_attn.out_proj
    encoder_attn_layer_norm
"""
BART_NAMES: Final = {
    ":table": "model.shared",
    **_layers("encoder", "model.encoder.layers.{}", BART_LAYER),
    **_layers("decoder", "model.decoder.layers.{}", BART_LAYER, BART_CROSS),
    "output:": "lm_head",
    "output:bias": "final_logits_bias",
}
SIDES: Final = (("source", "encoder"), ("target", "decoder"))
LEARNED_NAMES: Final = {
    **{f"{own}:positions.table": f"model.{side}.embed_positions" for own, side in SIDES},
    **{f"{own}:norm": f"model.{side}.layernorm_embedding" for own, side in SIDES},
}
LAST_NORMS: Final = {f"{side}:norm": f"model.{side}.layer_norm" for _, side in SIDES}
REPEATED: Final = r"(model\.)?(encoder|decoder)\.embed_tokens\.weight|lm_head\.weight"
SINES: Final = rf"{REPEATED}|model\.(encoder|decoder)\.embed_positions\.weights?"


def _t5_layer(block: str, last: int) -> str:
    attention = " ".join(f"layer.0.SelfAttention.{letter}" for letter in "qkvo")
    inner = f"layer.{last}.DenseReluDense"
    ends = f"{inner}.wi_1 {inner}.wo layer.{last}.layer_norm {inner}.wi_0"
    return f"{attention} layer.0.layer_norm {ends}"


T5_CROSS: Final = " ".join(f"layer.1.EncDecAttention.{letter}" for letter in "qkvo")
BIAS: Final = "{}.block.0.layer.0.SelfAttention.relative_attention_bias"
T5_NAMES: Final = {
    ":table": "shared",
    **_layers("encoder", "encoder.block.{}", _t5_layer("encoder", 1)),
    **_layers(
        "decoder", "decoder.block.{}", _t5_layer("decoder", 2), f"{T5_CROSS} layer.1.layer_norm"
    ),
    **{f"{side}:norm": f"{side}.final_layer_norm" for _, side in SIDES},
    **{f"{side}:position_bias.table": BIAS.format(side) for _, side in SIDES},
    "output:": "lm_head",
}
#: positions begin after this id
PLACED: Final = {"pad_token_id": 1}
T5: Final[dict[str, Any]] = {"unpack": _scale_t5, "pack": partial(_scale_t5, back=True)}
TYPED: Final[dict[str, Any]] = {"unpack": _add_types, "pack": _zero_types}


def _encoder(
    name: str,
    names: Mapping[str, str],
    options: Callable[[Any], Options],
    types: Mapping[str, Any] = MappingProxyType({}),
    **more: Any,
) -> ModelFamily:
    """Return a family of encoders, whose heads are left out."""
    fixed = {"is_decoder": False, "position_embedding_type": "absolute", **more.pop("fixed", {})}
    classes = tuple(f"{name}{task}" for task in ENCODES)
    own = {"prefix": f"{name.lower()}.", "spare": HEADS, **types, **more}
    return ModelFamily(classes, "classifier-transformer", names, options, fixed, **own)


def _seq2seq(
    name: str,
    names: Mapping[str, str],
    options: Callable[[Any], Options],
    fixed: Mapping[str, Any] = MappingProxyType({}),
    **more: Any,
) -> ModelFamily:
    """Return a family of encoder-decoders."""
    return ModelFamily((name,), "transformer", names, options, fixed, **{"spare": REPEATED, **more})


FAMILIES: Final[dict[str, ModelFamily]] = {
    "gpt2": ModelFamily(
        ("GPT2LMHeadModel",),
        "lm-transformer",
        {
            ":table": "transformer.wte",
            ":positions.table": "transformer.wpe",
            **_layers("decoder", "transformer.h.{}", GPT2_LAYER),
            "decoder:norm": "transformer.ln_f",
            "output:": "lm_head",
        },
        _gpt2,
        {
            "scale_attn_weights": True,
            "scale_attn_by_inverse_layer_idx": False,
            "add_cross_attention": False,
        },
        spare=r"lm_head\.weight|transformer\.h\.\d+\.attn\.(masked_)?bias",
        unpack=_split_gpt2,
        pack=_join_gpt2,
    ),
    "llama": ModelFamily(("LlamaForCausalLM",), "lm-transformer", LLAMA_NAMES, _llama, **LLAMA),
    "mistral": ModelFamily(
        ("MistralForCausalLM",),
        "lm-transformer",
        LLAMA_NAMES,
        lambda config: _llama(config, window=config.sliding_window),
        **LLAMA,
    ),
    "qwen2": ModelFamily(
        ("Qwen2ForCausalLM",),
        "lm-transformer",
        LLAMA_NAMES,
        lambda config: _llama(config, qkv_bias=True),
        {"use_sliding_window": False},
        **LLAMA,
    ),
    "gemma": ModelFamily(
        ("GemmaForCausalLM",),
        "lm-transformer",
        LLAMA_NAMES,
        lambda config: _llama(config, embed_scale=config.hidden_size**0.5),
        {"use_bidirectional_attention": False},
        unpack=partial(_shift_norms, by=1.0),
        pack=partial(_shift_norms, by=-1.0),
        **LLAMA,
    ),
    "bert": _encoder("Bert", BERT_NAMES, _bert, TYPED),
    "roberta": _encoder("Roberta", BERT_NAMES, _roberta, TYPED, fixed=PLACED, offset=2),
    "xlm-roberta": _encoder(
        "XLMRoberta", BERT_NAMES, _roberta, TYPED, fixed=PLACED, offset=2, prefix="roberta."
    ),
    "distilbert": _encoder(
        "DistilBert",
        {**EMBEDDINGS, **_layers("encoder", "transformer.layer.{}", DISTILBERT_LAYER)},
        _distilbert,
    ),
    "albert": _encoder(
        "Albert",
        {
            **EMBEDDINGS,
            ":projection": "encoder.embedding_hidden_mapping_in",
            **_layers("encoder", "encoder.albert_layer_groups.0.albert_layers.0", ALBERT_LAYER),
        },
        _albert,
        TYPED,
        fixed={"num_hidden_groups": 1, "inner_group_num": 1},
    ),
    "vit": ModelFamily(
        ("ViTForImageClassification", "ViTModel"),
        "classifier-transformer",
        {
            ":stem": "embeddings.patch_embeddings.projection",
            ":class_token": CLASS_TOKEN,
            ":positions.table": PLACES.removesuffix(".weight"),
            **_layers("encoder", "encoder.layer.{}", VIT_LAYER),
            "encoder:norm": "layernorm",
        },
        _vit,
        spare=HEADS,
        unpack=_flat_places,
        pack=_deep_places,
        prefix="vit.",
        reads="pictures",
    ),
    "marian": _seq2seq(
        "MarianMTModel",
        BART_NAMES,
        partial(_bart, norm_first=False, positions="sinusoidal-halves"),
        {"share_encoder_decoder_embeddings": True},
        spare=SINES,
    ),
    "bart": _seq2seq(
        "BartForConditionalGeneration",
        BART_NAMES | LEARNED_NAMES,
        partial(_learned, norm_first=False),
        offset=2,
    ),
    "mbart": _seq2seq(
        "MBartForConditionalGeneration", BART_NAMES | LEARNED_NAMES | LAST_NORMS, _learned, offset=2
    ),
    "pegasus": _seq2seq(
        "PegasusForConditionalGeneration",
        BART_NAMES | LAST_NORMS,
        partial(_bart, positions="sinusoidal-halves"),
        spare=SINES,
    ),
    "m2m_100": _seq2seq(
        "M2M100ForConditionalGeneration",
        BART_NAMES | LAST_NORMS,
        partial(_bart, positions="sinusoidal-fairseq"),
        PLACED,
        spare=SINES,
    ),
    "whisper": _seq2seq(
        "WhisperForConditionalGeneration",
        {
            **{name: theirs for name, theirs in BART_NAMES.items() if "output:" not in name},
            **LAST_NORMS,
            ":table": "model.decoder.embed_tokens",
            "source:first": "model.encoder.conv1",
            "source:second": "model.encoder.conv2",
            "target:positions.table": "model.decoder.embed_positions",
            "output:": "proj_out",
        },
        _whisper,
        {"scale_embedding": False},
        spare=r"proj_out\.weight|model\.encoder\.embed_positions\.weight",
        unpack=_add_key_biases,
        pack=_drop_key_biases,
        reads="sounds",
    ),
    "t5": _seq2seq("T5ForConditionalGeneration", T5_NAMES, _t5, **T5),
    "mt5": _seq2seq("MT5ForConditionalGeneration", T5_NAMES, _t5, **T5),
}
