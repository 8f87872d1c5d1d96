"""Options of Transformers against the modules of transformers that have them, in float64."""

import math

import pytest
import torch
from transformers import (
    AlbertConfig,
    AlbertModel,
    LlamaConfig,
    T5Config,
    T5Model,
)
from transformers.activations import ACT2FN
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaDecoderLayer
from transformers.models.m2m_100.modeling_m2m_100 import M2M100SinusoidalPositionalEmbedding
from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding
from transformers.models.whisper.modeling_whisper import sinusoids

from float64_mode import KeepFloat64
from layers.tools import away_from_zero
from models.cases import build, pairs
from ops.messages import refuses
from regard import masks
from regard.layers import (
    LayerOptions,
    RotaryPositions,
    SinusoidalPositions,
    TransformerDecoder,
)
from regard.layers.positions import RotaryScaling
from regard.layers.transformer import ACTIVATIONS
from regard.models import PRESETS
from regard.models.cpu.model import refuse_cpu_model

BATCH, LENGTH, SRC_LEN, DIM, INNER, VOCAB = 2, 7, 41, 24, 19, 17
LENGTHS = torch.tensor([41, 23])
EXACT = {"rtol": 0, "atol": 1e-9}


def double(module):
    return away_from_zero(module).double().eval()


def filled(ours, theirs, names):
    """Our module with their weights: `names` are theirs by ours, `{}` is the number of a layer."""
    weights, given = theirs.state_dict(), {}
    for name in ours.state_dict():
        stem, number = name, ""
        for part in name.split("."):
            if part.isdigit():
                stem, number = name.replace(f".{part}.", ".{}."), part
        given[name] = weights[names[stem].format(number)]
    ours.load_state_dict(given)
    return ours.double().eval()


def t5_names(side, memory):
    block, last = f"{side}.block.{{}}.layer", 2 if memory else 1
    names = {f"{side}.norm.weight": f"{side}.final_layer_norm.weight"}
    names["position_bias.table"] = (
        f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    )
    kinds = [("attention", 0, "SelfAttention"), ("cross", 1, "EncDecAttention")]
    for own, place, kind in kinds[: 2 if memory else 1]:
        for part, letter in zip(("query", "key", "value", "out"), "qkvo", strict=True):
            names[f"layers.{{}}.{own}.{part}_proj.weight"] = (
                f"{block}.{place}.{kind}.{letter}.weight"
            )
        names[f"layers.{{}}.{own}_residual.norm.weight"] = f"{block}.{place}.layer_norm.weight"
    inner = f"{block}.{last}.DenseReluDense"
    for own, part in (("gate", "wi_0"), ("inner", "wi_1"), ("outer", "wo")):
        names[f"layers.{{}}.feed_forward.{own}.weight"] = f"{inner}.{part}.weight"
    names["layers.{}.feed_forward_residual.norm.weight"] = f"{block}.{last}.layer_norm.weight"
    return names | {"norm.weight": f"{side}.final_layer_norm.weight"}


def test_norms_heads_gates_and_buckets_are_those_of_t5():
    torch.manual_seed(1)
    heads, width = 3, 5
    theirs = double(
        T5Model(
            T5Config(
                vocab_size=VOCAB,
                d_model=DIM,
                d_kv=width,
                num_heads=heads,
                d_ff=INNER,
                num_layers=2,
                feed_forward_proj="gated-gelu",
                relative_attention_num_buckets=8,
                relative_attention_max_distance=20,
                attn_implementation="eager",
            )
        )
    )
    sizes = {"dim": DIM, "heads": heads, "feed_forward": INNER, "layers": 2}
    ours = PRESETS["transformer"](
        VOCAB, VOCAB, **sizes, norm="rms", eps=1e-6, bias=False, head_dim=width, gated=True,
        activation="gelu-tanh", positions="relative", buckets=8, max_distance=20, embed_scale=1.0,
        tied="inputs", dropout=0.0,
    )  # fmt: skip
    encoder = filled(ours.encoder.encoder, theirs, t5_names("encoder", memory=False))
    decoder = filled(ours.decoder.decoder, theirs, t5_names("decoder", memory=True))
    for attention in [
        *(layer.attention for layer in encoder.layers),
        *(part for layer in decoder.layers for part in (layer.attention, layer.cross)),
    ]:
        attention.query_proj.weight.data *= width**0.5  # theirs are not scaled
    table = ours.decoder.embedding.table.double()
    table.weight.data.copy_(theirs.shared.weight)
    src, tgt = torch.randint(VOCAB, (BATCH, SRC_LEN)), torch.randint(VOCAB, (BATCH, LENGTH))
    mask = masks.padding(LENGTHS, SRC_LEN)
    with KeepFloat64():
        expected = theirs(
            input_ids=src,
            attention_mask=mask[:, 0, 0].long(),
            decoder_input_ids=tgt,
            output_attentions=True,
        )
    memory = ours.encode(src, LENGTHS, need_weights=True)
    real = mask[:, 0, 0]
    torch.testing.assert_close(
        memory.output[real], expected.encoder_last_hidden_state[real], **EXACT
    )
    out = decoder(table(tgt), decoder.start(memory.output, memory.mask), need_weights=True)
    torch.testing.assert_close(out.output, expected.last_hidden_state, **EXACT)
    for found, right in (
        (out.self_weights, expected.decoder_attentions),
        (out.cross_weights, expected.cross_attentions),
    ):
        for one, other in zip(found, right, strict=True):
            torch.testing.assert_close(one, other, **EXACT)


def test_rotated_grouped_and_gated_layers_are_those_of_llama():
    torch.manual_seed(1)
    config = LlamaConfig(
        hidden_size=DIM,
        intermediate_size=INNER,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=10,
        hidden_act="silu",
        attn_implementation="eager",
    )
    theirs = double(LlamaDecoderLayer(config, 0))
    options = LayerOptions(
        0.0, norm="rms", eps=config.rms_norm_eps, activation="silu", gated=True, bias=False,
        num_kv_heads=2, head_dim=10, rotation=RotaryPositions(10, base=500.0),
    )  # fmt: skip
    ours = TransformerDecoder(DIM, 4, INNER, 1, options, memory_size=None)
    ours.norm = None
    names = {f"attention.{part}_proj": f"self_attn.{part[0]}_proj" for part in ("query", "key")}
    names |= {"attention.value_proj": "self_attn.v_proj", "attention.out_proj": "self_attn.o_proj"}
    names |= {"attention_residual.norm": "input_layernorm", "feed_forward.gate": "mlp.gate_proj"}
    names |= {"feed_forward.inner": "mlp.up_proj", "feed_forward.outer": "mlp.down_proj"}
    names |= {"feed_forward_residual.norm": "post_attention_layernorm"}
    filled(ours, theirs, {f"layers.{{}}.{a}.weight": f"{b}.weight" for a, b in names.items()})
    x = torch.randn(BATCH, LENGTH, DIM, dtype=torch.float64)
    # theirs rounds angles to float32
    wave = 500.0 ** (-torch.arange(0, 10, 2, dtype=torch.float64) / 10)
    angles = torch.cat([torch.arange(LENGTH)[:, None] * wave] * 2, dim=-1)[None]
    forbidden = ~masks.causal(LENGTH)
    unseen = torch.zeros(forbidden.shape).double().masked_fill(forbidden, -math.inf)
    with KeepFloat64():
        expected = theirs(
            x, attention_mask=unseen, position_embeddings=(angles.cos(), angles.sin())
        )
    torch.testing.assert_close(ours(x, ours.start_without(BATCH, x)).output, expected, **EXACT)


def test_factorised_normalised_embeddings_and_shared_layers_are_those_of_albert():
    torch.manual_seed(1)
    config = AlbertConfig(
        vocab_size=VOCAB, embedding_size=10, hidden_size=DIM, num_hidden_layers=3,
        hidden_act="gelu", num_attention_heads=3, intermediate_size=INNER,
        max_position_embeddings=SRC_LEN, attn_implementation="eager",
    )  # fmt: skip
    theirs = double(AlbertModel(config))
    ours = PRESETS["classifier-transformer"](
        VOCAB, VOCAB, dim=DIM, heads=3, feed_forward=INNER, layers=1, repeats=3, embed=10,
        embed_norm=True, embed_scale=1.0, positions="learned", max_positions=SRC_LEN, dropout=0.0,
        norm_first=False, eps=config.layer_norm_eps, activation="gelu",
    )  # fmt: skip
    layer = "encoder.albert_layer_groups.0.albert_layers.0"
    names = {
        "embedding.table": "embeddings.word_embeddings",
        "embedding.norm": "embeddings.LayerNorm",
        "embedding.projection": "encoder.embedding_hidden_mapping_in",
        "encoder.layers.{}.attention.query_proj": f"{layer}.attention.query",
        "encoder.layers.{}.attention.key_proj": f"{layer}.attention.key",
        "encoder.layers.{}.attention.value_proj": f"{layer}.attention.value",
        "encoder.layers.{}.attention.out_proj": f"{layer}.attention.dense",
        "encoder.layers.{}.attention_residual.norm": f"{layer}.attention.LayerNorm",
        "encoder.layers.{}.feed_forward.inner": f"{layer}.ffn",
        "encoder.layers.{}.feed_forward.outer": f"{layer}.ffn_output",
        "encoder.layers.{}.feed_forward_residual.norm": f"{layer}.full_layer_layer_norm",
    }
    both = {f"{a}.{p}": f"{b}.{p}" for a, b in names.items() for p in ("weight", "bias")}
    both["embedding.positions.table"] = "embeddings.position_embeddings.weight"
    encoder = filled(ours.classifier.encoder, theirs, both)
    encoder.embedding.positions.table.data += theirs.embeddings.token_type_embeddings.weight[0]
    src, mask = torch.randint(VOCAB, (BATCH, SRC_LEN)), masks.padding(LENGTHS, SRC_LEN)[:, 0, 0]
    expected = theirs(src, attention_mask=mask.long(), output_attentions=True)
    memory = encoder(src, LENGTHS, need_weights=True)
    torch.testing.assert_close(memory.output[mask], expected.last_hidden_state[mask], **EXACT)
    for one, other in zip(memory.maps["encoder-self"], expected.attentions, strict=True):
        torch.testing.assert_close(one, other, **EXACT)


def test_layouts_of_sines_are_those_of_marian_fairseq_and_whisper():
    marian = MarianSinusoidalPositionalEmbedding(50, DIM)
    fairseq = M2M100SinusoidalPositionalEmbedding(50, DIM, 1)
    expected = {
        "halves": marian.create_weight()[3 : 3 + LENGTH],
        "fairseq": fairseq(torch.full((1, LENGTH), 5), past_key_values_length=3)[0],
        "whisper": sinusoids(50, DIM)[3 : 3 + LENGTH],
    }
    for layout, waves in expected.items():
        found = SinusoidalPositions(DIM, layout)(torch.zeros(1, LENGTH, DIM), start=3)[0]
        torch.testing.assert_close(found, waves, rtol=0, atol=1e-5)


def test_scaled_rotary_waves_are_those_of_llama_3():
    factors = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    config = LlamaConfig(
        hidden_size=64,
        num_attention_heads=1,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "original_max_position_embeddings": 8192,
            **factors,
        },
    )
    expected, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    own = RotaryScaling(*factors.values(), 8192.0)
    plain = 500000.0 ** (-torch.arange(0, 64, 2, dtype=torch.float64) / 64)
    assert not torch.allclose(own(plain).float(), plain.float())
    torch.testing.assert_close(own(plain).float(), expected)


@pytest.mark.parametrize(("own", "theirs"), [
    ("relu", "relu"), ("gelu", "gelu"), ("gelu-tanh", "gelu_new"), ("silu", "silu"),
])  # fmt: skip
def test_activations_are_theirs(own, theirs):
    x = torch.linspace(-5, 5, 101, dtype=torch.float64)
    torch.testing.assert_close(ACTIVATIONS[own](x), ACT2FN[theirs](x), **EXACT)


def test_a_window_is_the_nearest_keys():
    torch.manual_seed(1)
    model = build("lm-transformer", window=2, positions="none").double().eval()
    tgt = torch.randint(4, 13, (1, LENGTH))
    src = torch.tensor([[2]])
    weights = model(src, None, tgt, need_weights=True).maps["decoder-self"]
    near = masks.causal(LENGTH) & masks.window(LENGTH, size=2)
    assert all(((w > 0) == near).all() for w in weights)
    # two layers of windows of two see three tokens
    other = tgt.clone()
    other[:, : LENGTH - 3] = 4
    torch.testing.assert_close(model(src, None, other).logits[:, -1],
                               model(src, None, tgt).logits[:, -1])  # fmt: skip


VARIANTS = {
    "llama": {"norm": "rms", "bias": False, "activation": "silu", "gated": True, "kv_heads": 1,
              "positions": "rotary", "head_dim": 6, "embed_scale": 1.0},
    "t5": {"norm": "rms", "bias": False, "positions": "relative", "buckets": 4, "max_distance": 5},
    "bart": {"norm_first": False, "activation": "gelu", "positions": "learned",
             "max_positions": 9, "embed_norm": True},
    "qwen": {"bias": False, "qkv_bias": True, "window": 2, "positions": "rotary", "head_dim": 4},
    "marian": {"norm_first": False, "activation": "silu", "positions": "sinusoidal-halves"},
    "albert": {"embed": 5, "repeats": 2, "embed_norm": True},
}  # fmt: skip


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", VARIANTS)
def test_steps_equal_the_whole_and_padding_counts_nothing(name):
    src, lengths, tgt = pairs()
    model = build("transformer", **VARIANTS[name])
    away_from_zero(model).double().eval()
    whole = model(src, lengths, tgt)
    state, logits = model.start(model.encode(src, lengths)), []
    for tokens in tgt.unbind(dim=1):
        out = model.step(tokens, state)
        state = out.state
        logits.append(out.logits)
    torch.testing.assert_close(torch.stack(logits, dim=1), whole.logits, rtol=1e-9, atol=1e-9)
    for i, length in enumerate(lengths.tolist()):
        alone = model(src[i : i + 1, :length], None, tgt[i : i + 1]).logits
        torch.testing.assert_close(alone, whole.logits[i : i + 1], rtol=1e-9, atol=1e-9)
    without = [n for n, p in model.named_parameters() if p.grad is not None]
    assert without == []
    whole.logits.square().sum().backward()
    silent = {n for n, p in model.named_parameters() if p.grad is None}
    assert silent == set()


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_compiled_steps_know_what_they_run(name):
    """Weights alone do not say what they mean: a copy must refuse what it would compute wrongly."""
    assert (refuse_cpu_model(build("transformer", **VARIANTS[name])) is None) == (name == "marian")


@pytest.mark.plain
@pytest.mark.parametrize(("option", "value"), [
    ("norm", "batch"), ("positions", "absolute"), ("activation", "swish"), ("window", 0),
    ("repeats", 0), ("head_dim", 0),
])  # fmt: skip
def test_wrong_options(option, value):
    with refuses(option, "be", ""):
        build("transformer", **{option: value})
