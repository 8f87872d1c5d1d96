"""The names that users rely on. A change here is a change for them."""

import pytest

import regard
from regard import attention, layers, models, ops, sklearn

NAMES = {
    regard: (
        "Model Output PretrainedModel __version__ attention capture fit generate "
        "layers load masks models ops show sklearn"
    ),
    ops: (
        "BACKENDS AdditiveScore AttentionOutput AttentiveOutput AttentiveState AttentiveWeights "
        "DotScore History ScoreFunction SelfAttentiveOutput active_backend additive_attention "
        "attentive_rnn dot_product_attention dropout masked_softmax monotonic_alignment "
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
        "STORY_PRESETS TAG_PRESETS TEXT_PRESETS AnyModel Classifier ClassifierOutput ColumnInput "
        "ConvInput EncoderDecoder InputAdapter JointDecoder LanguageModel Maps Memory ModelOutput "
        "NumberModel NumberOutput ConvStem PictureInput SequenceClassifier "
        "SequenceModel StepOutput Tagger TextModel TimeConvInput VectorInput with_input"
    ),
    sklearn: "Classifier Regressor",
}
NAMES = {module: names.split() for module, names in NAMES.items()}


@pytest.mark.parametrize("module", NAMES, ids=lambda module: module.__name__)
def test_names(module):
    assert sorted(module.__all__) == sorted(NAMES[module])
    assert all(hasattr(module, name) for name in module.__all__)
