"""Pairs of texts: a source that is read, and a target that is written."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, final

from regard.data import (
    TOKENIZER_KINDS,
    EncodedPairs,
    Pair,
    PairReader,
    Tokenizer,
    read_pairs,
    require_text,
)
from regard.data.dev_set import DevSet, overlapping_sources
from regard.data.pair_reader import SourceTransform
from regard.data.pairs import column_names
from regard.data.sampling import draw_sample
from regard.errors import ArgumentError
from regard.evaluation import copied_share
from regard.kinds.data_kind import DataKind, DataPlace, Encoders, Say, Settings
from regard.kinds.text_source import TextSource
from regard.kinds.tokenizer_training import (
    TOKENIZER_LINES,
    check_label_settings,
    learn_target_tokenizer,
    learn_tokenizer,
    shared_tokenizer_kind,
)
from regard.messages import message
from regard.models import (
    COPY_PRESETS,
    PRESETS,
    SPAN_PRESETS,
    STORY_PRESETS,
    TAG_PRESETS,
    TEXT_PRESETS,
    SequenceModel,
)
from regard.seeing import Text

#: measures of summaries
ROUGE: Final = ("rouge-1", "rouge-2", "rouge-l")


@final
class TextPairs(DataKind):
    """Pairs of texts, such as sentences and translations, or words and their pronunciation."""

    name = "text-pairs"
    encoder_kinds = TOKENIZER_KINDS
    reads_shards = True

    def __init__(self, settings: Settings, encoders: Encoders) -> None:
        super().__init__(settings, encoders)
        self.source: Tokenizer
        self.sources = TextSource(self.source)

    @classmethod
    def is_possible(cls, settings: Settings) -> bool:
        """Return whether sources may be text, and the preset reads pairs of any lengths."""
        other = settings.preset in {*TEXT_PRESETS, *STORY_PRESETS, *SPAN_PRESETS, *TAG_PRESETS}
        return settings.src_tokenizer in ("auto", *TOKENIZER_KINDS) and not other

    @classmethod
    def recognise(cls, settings: Settings, first: Callable[[], Sequence[Pair]]) -> str:
        """Return that nothing else was recognised: pairs are text unless they look otherwise."""
        return message("train.why.text")

    @classmethod
    def check_settings(cls, settings: Settings) -> None:
        """Raise ArgumentError for settings of frames, or of texts without a source."""
        check_text_settings(settings)
        check_pair_settings(settings)

    @classmethod
    def read(cls, settings: Settings, place: DataPlace) -> PairReader:
        """Read pairs of texts."""
        return read_pair_files(settings, place, require_text)

    @classmethod
    def learn(
        cls, settings: Settings, pairs: Iterable[Pair], *, file: str, why: str, say: Say
    ) -> Encoders:
        """Learn a tokeniser for each side, or one for both."""

        def learn_target(targets: list[str]) -> Tokenizer:
            return learn_target_tokenizer(settings, targets, say, file=file)

        return learn_pair_tokenizers(settings, pairs, say, learn_target)

    def build_model(self) -> SequenceModel:
        """Build the preset; one that copies learns how many source tokens are features."""
        copies = self.settings.preset in COPY_PRESETS
        more = {"src_only": len(self.source.features)} if copies else {}
        return build_text_model(self.settings, self.source, self.target, **more)

    def metrics(self) -> tuple[str, ...]:
        """Return all kinds of ROUGE if one of them decides between checkpoints."""
        return ROUGE if self.settings.metric in ROUGE else super().metrics()

    def trace_notes(self, source: Text, target: Text) -> tuple[str, ...]:
        """Return remarks about unknown tokens and, if the preset copies, about copied words."""
        notes = super().trace_notes(source, target)
        if self.settings.preset not in COPY_PRESETS or not target.text.strip():
            return notes
        share = copied_share([target.text], [source.text])
        return (*notes, message("copied.trace", share=share))

    def output_notes(self, predictions: Sequence[str], pairs: Sequence[Pair]) -> tuple[str, ...]:
        """Return how many words were copied, if the preset copies."""
        if self.settings.preset not in COPY_PRESETS:
            return ()
        return (copying_note(predictions, pairs),)

    def overlap(self, train: EncodedPairs, dev: DevSet) -> int:
        """Return how many dev sources occur in the training data, token by token."""
        return overlapping_sources(train, dev)


def copying_note(predictions: Sequence[str], pairs: Sequence[Pair]) -> str:
    """Return a sentence about the share of words that stand in their source."""
    sources = [pair.src for pair in pairs]
    own = copied_share(predictions, sources)
    right = copied_share([pair.tgt for pair in pairs], sources)
    return message("copied.all", own=own, right=right)


def build_text_model(
    settings: Settings, source: Tokenizer, target: Tokenizer, **more: Any
) -> SequenceModel:
    """Build the preset of the settings for two vocabularies."""
    sizes = source.vocab_size, target.vocab_size
    return PRESETS[settings.preset](*sizes, settings.model_size, **settings.model, **more)


def read_pair_files(settings: Settings, place: DataPlace, sources: SourceTransform) -> PairReader:
    """Read pairs as the settings of a run lay them out."""
    source = place.source
    # beside tuples, columns are meant for the file of dev pairs
    tuples = not isinstance(source, str) and not isinstance(next(iter(source), ()), Mapping)
    columns = None if tuples and settings.dev is not None else settings.columns
    return read_pairs(
        source,
        tgt_file=place.tgt_file,
        columns=column_names(columns),
        features=bool(settings.features),
        skip_bad=settings.skip_bad,
        max_chars=settings.max_chars,
        advice=place.hints,
        sources=sources,
    )


def learn_pair_tokenizers(
    settings: Settings,
    pairs: Iterable[Pair],
    say: Say,
    learn_target: Callable[[list[str]], Tokenizer],
) -> Encoders:
    """Learn a tokeniser for each side of pairs of texts, or one for both.

    Args:
        settings: of the run.
        pairs: training data.
        say: announces each choice.
        learn_target: learns that of targets.
    """
    lines = draw_sample(pairs, TOKENIZER_LINES)
    features = sorted({f for p in lines for f in p.features})
    if settings.shared_vocab:
        # alternating, so that the sample by which a kind is chosen has both sides
        texts = [text for p in lines for text in (p.src, p.tgt)]
        kind = shared_tokenizer_kind(settings)
        both = learn_tokenizer(settings, "source and target", kind, texts, say, features)
        return Encoders(both, both)
    sources, targets = [p.src for p in lines], [p.tgt for p in lines]
    return Encoders(
        learn_tokenizer(settings, "source", settings.src_tokenizer, sources, say, features),
        learn_target(targets),
    )


def check_text_settings(settings: Settings) -> None:
    """Raise ArgumentError for a setting that is only for frames."""
    for name, default in (("stack", 1), ("scale_vectors", True)):
        value = getattr(settings, name)
        if value != default:
            raise ArgumentError(
                name,
                "be left out where sources are text",
                repr(value),
                "add src_tokenizer=vectors if they are vectors",
            )


def check_pair_settings(settings: Settings) -> None:
    """Raise ArgumentError for a setting that is only for texts without a source, or for others
    than labels."""
    check_label_settings(settings)
    if settings.join_lines > 1:
        raise ArgumentError(
            "join_lines",
            "be 1 for pairs",
            repr(settings.join_lines),
            f"the preset {settings.preset} reads pairs",
        )
