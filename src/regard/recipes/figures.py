"""What is printed of a model's answers: the figures that papers print, in their units."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from sacrebleu.metrics.bleu import BLEU

from regard.evaluation import PLAIN_TEXT, MetricScore, Normalizer, score
from regard.recipes.examples import Example


@dataclass(frozen=True)
class Figure:
    """A figure, and what must be known to set it beside another.

    Attributes:
        name: `wer`, `per`, `exact`, `bleu`, ...
        value: per cent for shares, points for BLEU.
        signature: how it was counted.
        higher_is_better: False for errors and perplexity.
        groups: the figure of each group that it is the mean of.
    """

    name: str
    value: float
    signature: str
    higher_is_better: bool
    groups: Mapping[str, float] = field(default_factory=dict)


#: (examples, answers, the form in which they are compared) -> a figure
Count = Callable[[Sequence[Example], Sequence[str], Normalizer], Figure]


def exact(
    examples: Sequence[Example], answers: Sequence[str], normalizer: Normalizer = PLAIN_TEXT
) -> Figure:
    """Answers that equal one of their references."""
    found = _score("exact", examples, answers, normalizer)
    return Figure("exact", 100 * found.value, found.signature, True)


def word_errors(
    examples: Sequence[Example], answers: Sequence[str], normalizer: Normalizer = PLAIN_TEXT
) -> Figure:
    """Words that equal none of their pronunciations: the WER of papers on pronunciation."""
    right = exact(examples, answers, normalizer)
    signature = right.signature.replace("exact", "wer|1-exact")
    return Figure("wer", 100 - right.value, signature, False)


def phoneme_errors(
    examples: Sequence[Example], answers: Sequence[str], normalizer: Normalizer = PLAIN_TEXT
) -> Figure:
    """Edits of phonemes against the nearest pronunciation."""
    found = _score("per", examples, answers, normalizer)
    return Figure("per", 100 * found.value, found.signature, False)


def bleu(
    examples: Sequence[Example], answers: Sequence[str], normalizer: Normalizer = PLAIN_TEXT
) -> Figure:
    """BLEU of plain text, upper and lower case apart, as sacrebleu counts it."""
    found = _score("bleu", examples, answers, normalizer)
    return Figure("bleu", found.value, found.signature, True)


def bleu_lowercase(
    examples: Sequence[Example], answers: Sequence[str], normalizer: Normalizer = PLAIN_TEXT
) -> Figure:
    """BLEU of tokens in lower case, beside papers whose text was made so before training."""
    metric = BLEU(lowercase=True, force=True)
    return _lowercase("bleu-lc", metric, examples, answers, normalizer)


def bleu_of_tokens(
    examples: Sequence[Example], answers: Sequence[str], normalizer: Normalizer = PLAIN_TEXT
) -> Figure:
    """BLEU of the tokens of Moses in lower case, as papers on older sets count it.

    Sacrebleu leaves `l'homme` whole, Moses makes `l'` and `homme` of it, of which one is easy. The
    group of an example is its language.
    """
    from sacremoses import MosesTokenizer, __version__

    moses = MosesTokenizer(lang=examples[0].group)

    def cut(text: str) -> str:
        return str(moses.tokenize(text, escape=False, return_str=True))

    metric = BLEU(lowercase=True, tokenize="none", force=True)
    found = _lowercase("bleu-tok", metric, examples, answers, normalizer, cut)
    signature = found.signature.replace("tok:none", f"tok:moses-{__version__}")
    return replace(found, signature=signature)


def _score(
    name: str, examples: Sequence[Example], answers: Sequence[str], normalizer: Normalizer
) -> MetricScore:
    references = [example.references for example in examples]
    return score(name, answers, references, normalizer=normalizer)


def _lowercase(
    name: str,
    metric: BLEU,
    examples: Sequence[Example],
    answers: Sequence[str],
    normalizer: Normalizer,
    cut: Callable[[str], str] = str,
) -> Figure:
    """BLEU as sacrebleu counts it, of texts that are brought to a form and then cut into tokens."""

    def prepare(texts: Iterable[str]) -> list[str]:
        return [cut(normalizer.normalize(text)) for text in texts]

    # all first references, all second ones: sets here have as many for each sentence
    streams = zip(*(example.references for example in examples), strict=True)
    value = metric.corpus_score(prepare(answers), list(map(prepare, streams))).score
    signature = f"bleu|{metric.get_signature().format()}|norm:{normalizer.normal_form}"
    return Figure(name, float(value), signature, True)


def by_group(count: Count) -> Count:
    """The figure of each group by itself, then their mean: large groups do not count for more."""

    def counted(
        examples: Sequence[Example], answers: Sequence[str], normalizer: Normalizer = PLAIN_TEXT
    ) -> Figure:
        rows: dict[str, tuple[list[Example], list[str]]] = {}
        for example, answer in zip(examples, answers, strict=True):
            mine = rows.setdefault(example.group, ([], []))
            mine[0].append(example)
            mine[1].append(answer)
        each = {name: count(*rows[name], normalizer) for name in sorted(rows)}
        first = next(iter(each.values()))
        return Figure(
            first.name,
            fmean(figure.value for figure in each.values()),
            f"{first.signature}|mean-of:{len(each)}",
            first.higher_is_better,
            {name: figure.value for name, figure in each.items()},
        )

    return counted
