"""The names and signatures that users rely on. A change here is a change for them."""

import inspect

import pytest

import regard
from regard import attention, layers, masks, models, ops, sklearn

NAMES = {
    regard: (
        "Model Output PretrainedModel __version__ attention capture fit generate "
        "layers load masks models ops show sklearn"
    ),
    ops: (
        "BACKENDS AdditiveScore AttentionOutput AttentiveOutput AttentiveState AttentiveWeights "
        "DotScore History ScoreFunction SelfAttentiveOutput active_backend additive_attention "
        "attentive_rnn dot_product_attention masked_softmax monotonic_alignment "
        "self_attentive_rnn use_backend"
    ),
    attention: (
        "ALiBi AdditiveAttention Attention AttentionOutput CoverageAttention LocalAttention "
        "LocationAwareAttention MultiHeadAttention MultiplicativeAttention Past PositionBias "
        "PositionPredictor Projected RelativeBuckets ScaledDotProductAttention Scorer "
        "ShawRelativePositions SimpleSelfAttention"
    ),
    layers: (
        "ContentMemory ContentMemoryOutput ConvDecoder ConvEncoder ConvState FeedForward "
        "GatedConvolution LayerOptions GridPositions LearnedPositions RNNStack RecurrentOutput "
        "RecurrentState RotaryPositions SelfAttentiveRNN SinusoidalPositions SpecAugment "
        "TransformerDecoder TransformerDecoderLayer TransformerEncoder TransformerEncoderLayer "
        "TransformerState"
    ),
    models: (
        "CLASSIFIERS COPY_PRESETS LABEL_PRESETS LANGUAGE_MODELS PRESETS SPAN_PRESETS "
        "STORY_PRESETS TAG_PRESETS TEXT_PRESETS AnyModel Classifier ClassifierOutput ConvInput "
        "EncoderDecoder InputAdapter JointDecoder LanguageModel Maps Memory ModelOutput "
        "NumberModel NumberOutput ConvStem PictureInput SequenceClassifier "
        "SequenceModel StepOutput Tagger TextModel TimeConvInput VectorInput with_input"
    ),
    sklearn: "Classifier Regressor",
}
NAMES = {module: names.split() for module, names in NAMES.items()}

FORWARD = "(self, query, key, value, mask=None, *, past=None, need_weights=True)"

SIGNATURES = {
    regard.capture: ("(module, layers=None, *, max_weights=50000000, tokens=None, lengths=None)"),
    regard.show: "(weights, src=None, tgt=None, *, layer='auto', head='auto', special='dim')",
    regard.fit: (
        "(pairs, y=None, preset=None, *, target=None, source=None, output=None, search=None, "
        "quiet=False, "
        "**settings)"
    ),
    regard.Model.score: "(self, data, y=None)",
    regard.Model.save: "(self, folder)",
    regard.Model.evaluate: (
        "(self, pairs, metric=None, *, beam=None, tgt_file=None, columns=None, skip_bad=False)"
    ),
    regard.Model.align: "(self, pairs, *, words=None, tgt_file=None, columns=None, skip_bad=False)",
    masks.padding: "(lengths, max_len)",
    masks.causal: "(q_len, kv_len=None, *, device=None)",
    masks.window: "(q_len, kv_len=None, *, size, device=None)",
    masks.chunk: "(q_len, kv_len=None, *, size, device=None)",
    masks.document: "(query_ids, key_ids=None)",
    masks.from_torch: "(key_padding_mask=None, attn_mask=None, *, num_heads=1)",
    masks.to_torch: "(mask, *, batch, num_heads, q_len=None)",
    masks.per_row: "(mask, batch)",
    masks.check: "(mask, batch, heads, q_len, kv_len, *, name='mask')",
    masks.check_broadcast: "(tensor, batch, heads, q_len, kv_len, *, name)",
    ops.additive_attention: "(query, key, v, value, mask=None, need_weights=False)",
    ops.dot_product_attention: (
        "(query, key, value, mask=None, scale=None, causal=False, need_weights=False, *, "
        "bias=None, dropout=0.0)"
    ),
    ops.attentive_rnn: (
        "(inputs, start, weights, score, key, value, mask, *, cell='gru', need_weights=False)"
    ),
    ops.monotonic_alignment: "(scores, evidence, mask)",
    ops.self_attentive_rnn: (
        "(inputs, recurrent_weight, score, state=None, *, cell='rnn', recurrent_bias=None, "
        "query_inputs=None, lengths=None, need_weights=False)"
    ),
    ops.use_backend: "(name)",
    attention.AdditiveAttention: "(query_size, key_size, hidden_size)",
    attention.AdditiveAttention.forward: FORWARD,
    attention.MultiplicativeAttention: (
        "(query_size, key_size, score='general', *, hidden_size=None)"
    ),
    attention.MultiplicativeAttention.forward: FORWARD,
    attention.ScaledDotProductAttention: "(query_size, key_size, hidden_size)",
    attention.ScaledDotProductAttention.forward: FORWARD,
    attention.SimpleSelfAttention: "(scale=1.0)",
    attention.SimpleSelfAttention.forward: (
        "(self, query, key=None, value=None, mask=None, *, past=None, need_weights=True)"
    ),
    attention.LocalAttention: "(scorer, half_width, predictor=None)",
    attention.LocalAttention.forward: FORWARD,
    attention.PositionPredictor: "(query_size, hidden_size)",
    attention.PositionPredictor.forward: "(self, query, lengths)",
    attention.LocationAwareAttention: (
        "(query_size, key_size, hidden_size, *, channels=10, kernel_size=31)"
    ),
    attention.LocationAwareAttention.forward: FORWARD,
    attention.CoverageAttention: "(query_size, key_size, hidden_size)",
    attention.CoverageAttention.forward: FORWARD,
    attention.MultiHeadAttention: (
        "(dim, num_heads, *, num_kv_heads=None, key_size=None, value_size=None, "
        "head_dim=None, bias=True, qkv_bias=None, dropout=0.0, position_bias=None, "
        "rotation=None, window=None)"
    ),
    attention.MultiHeadAttention.forward: (
        "(self, query, key, value, mask=None, *, causal=False, past=None, need_weights=True, "
        "bias=None)"
    ),
    attention.ALiBi: "(num_heads)",
    attention.ALiBi.forward: "(self, query, kv_len)",
    attention.ShawRelativePositions: "(head_dim, max_distance, *, values=False)",
    attention.ShawRelativePositions.forward: "(self, query, kv_len)",
    layers.ContentMemory: "(input_size, slots, width)",
    layers.ContentMemory.forward: "(self, x, slots)",
    attention.Past: "(position, weights, coverage=None)",
    attention.Projected: "(tensor)",
    attention.AttentionOutput: "(context, weights)",
    models.VectorInput: "(features, dim, *, positions=None, dropout=0.0, stack=1, augment=None)",
    models.ConvInput: "(features, dim, *, positions=None, dropout=0.0, layers=2, channels=64, "
    "augment=None)",
    models.TimeConvInput: "(features, dim, *, dropout=0.0, augment=None)",
    models.JointDecoder: "(decoder, *, memory_size, weight, search_weight=0.0)",
    layers.SpecAugment: "(*, time_masks=0, time_width=40, band_masks=0, band_width=8, speed=0.0, "
    "warp=0.0)",
    models.with_input: "(model, adapter)",
}


def signature(thing):
    """Names and defaults of its parameters, without their types."""
    whole = inspect.signature(thing)
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in whole.parameters.values()]
    return str(inspect.Signature(bare))


def public_functions(module):
    return {
        thing
        for name, thing in inspect.getmembers(module, inspect.isfunction)
        if thing.__module__ == module.__name__ and not name.startswith("_")
    }


@pytest.mark.parametrize("module", NAMES, ids=lambda module: module.__name__)
def test_names(module):
    assert sorted(module.__all__) == sorted(NAMES[module])
    assert all(hasattr(module, name) for name in module.__all__)


@pytest.mark.parametrize("thing", SIGNATURES, ids=lambda thing: thing.__qualname__)
def test_signatures(thing):
    assert signature(thing) == SIGNATURES[thing]


def test_every_function_of_masks_is_frozen():
    missing = public_functions(masks) - SIGNATURES.keys()
    assert not missing, f"give {missing} a line in SIGNATURES"


def test_every_mechanism_is_frozen():
    things = (getattr(attention, name) for name in attention.__all__)
    mechanisms = {t for t in things if issubclass(t, attention.Attention)} - {attention.Attention}
    assert mechanisms <= SIGNATURES.keys()
    assert {mechanism.forward for mechanism in mechanisms} <= SIGNATURES.keys()
