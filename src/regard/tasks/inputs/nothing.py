"""Nothing: a language model has no source, and what it is given is how its output begins."""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from regard.data import Pair, PairReader, Tokenizer, read_texts
from regard.data.dev_set import is_held_out
from regard.data.lookup_codecs import KINDS
from regard.data.pairs import draw_sample
from regard.errors import ArgumentError
from regard.messages import message
from regard.models import TEXT_PRESETS
from regard.tasks.inputs.base import InputDescription
from regard.tasks.inputs.text import TextInput
from regard.tasks.settings import DataPlace, Say, Settings
from regard.tasks.tokenizer_training import TOKENIZER_LINES, learn_tokenizer

#: how a model card shows a text
CARD_TEXT: Final = re.compile(r"^Texts of its dev set look like this:\n\n {4}(.+)$", re.MULTILINE)


class NoInput(TextInput):
    """Texts that are continued: the tokeniser is that of what is written."""

    name = "nothing"
    facts = TextInput.facts._replace(
        has_sources=False,
        scales_batches=False,
        examples="texts",
        inputs="texts",
        maps=("decoder-self", "decoder-history"),
        files=("input.txt", "test.txt"),
        metrics=dict.fromkeys(KINDS, "perplexity"),
        only=("tokens", "a language model has no source, and continues texts"),
    )
    card_patterns = (CARD_TEXT,)

    @classmethod
    def is_possible(cls, settings: Settings) -> bool:
        """Return whether the preset is a language model."""
        return settings.preset in TEXT_PRESETS

    @classmethod
    def recognise(cls, settings: Settings, first: Callable[[], Sequence[Pair]]) -> str:
        """Return that the preset decides."""
        return message("train.why.language-model", preset=settings.preset)

    @classmethod
    def check_settings(cls, settings: Settings) -> None:
        """Raise ArgumentError for settings of pairs or frames."""
        super().check_settings(settings)
        if settings.src_case != "keep":
            rule = "be keep where one tokeniser cuts what is read and what is written"
            value = repr(settings.src_case)
            raise ArgumentError("src_case", rule, value, "bring the data to one case instead")
        if settings.metric not in ("auto", "perplexity", "loss"):
            raise _only_for_pairs(settings, "metric", "perplexity or loss for texts")
        if settings.src_tokenizer != "auto":
            rule = "auto for texts, which tgt_tokenizer cuts"
            raise _only_for_pairs(settings, "src_tokenizer", rule)
        for name in ("tgt", "dev_tgt", "columns", "features", "shared_vocab"):
            if getattr(settings, name):
                raise _only_for_pairs(settings, name, "left out for texts")

    @classmethod
    def read_examples(
        cls, settings: Settings, place: DataPlace, check: Callable[[Pair], Pair]
    ) -> PairReader:
        """Read one text per line; in Python, a text may stand alone in a tuple."""
        texts = place.source
        if not isinstance(texts, str):  # reading complains of what is no text
            texts = (one[0] if isinstance(one, tuple) and len(one) == 1 else one for one in texts)
        return read_texts(
            texts, skip_bad=settings.skip_bad, max_chars=settings.max_chars, advice=place.hints
        )

    @classmethod
    def is_dev(cls, settings: Settings, pair: Pair, share: float) -> bool:
        """Return whether a text is held out, if there is no dev file."""
        return is_held_out(pair.tgt, share=share)

    @classmethod
    def fingerprint_options(cls, settings: Settings) -> dict[str, Any]:
        """Return the lines that are joined to one text."""
        return {"join_lines": settings.join_lines}

    @classmethod
    def learn(
        cls, settings: Settings, pairs: Iterable[Pair], *, file: str, why: str, say: Say
    ) -> Tokenizer:
        """Learn one tokeniser, for what is given and for what is written."""
        drawn = draw_sample(pairs, TOKENIZER_LINES)
        lines = [line for pair in drawn for line in pair.tgt.split("\n")]
        return learn_tokenizer(settings, "text", settings.tgt_tokenizer, lines, say)

    def describe(self) -> InputDescription:
        """Return the properties of the tokeniser, whose texts are continued."""
        found = super().describe()
        return found._replace(reads=message("reads.continued", reads=found.reads))


def _only_for_pairs(settings: Settings, name: str, rule: str) -> ArgumentError:
    value, reads = repr(getattr(settings, name)), f"the preset {settings.preset} reads texts"
    return ArgumentError(name, f"be {rule}", value, reads)
