"""What is printed of a model's answers: the figures that papers print, in their units."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from sacrebleu.metrics.bleu import BLEU

from regard.evaluation import score
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


#: (examples, answers) -> a figure
Count = Callable[[Sequence[Example], Sequence[str]], Figure]


def exact(examples: Sequence[Example], answers: Sequence[str]) -> Figure:
    """Answers that equal one of their references."""
    found = score("exact", answers, [example.references for example in examples])
    return Figure("exact", 100 * found.value, found.signature, True)


def word_errors(examples: Sequence[Example], answers: Sequence[str]) -> Figure:
    """Words that equal none of their pronunciations: the WER of papers on pronunciation."""
    right = exact(examples, answers)
    signature = right.signature.replace("exact", "wer|1-exact")
    return Figure("wer", 100 - right.value, signature, False)


def phoneme_errors(examples: Sequence[Example], answers: Sequence[str]) -> Figure:
    """Edits of phonemes against the nearest pronunciation."""
    found = score("per", answers, [example.references for example in examples])
    return Figure("per", 100 * found.value, found.signature, False)


def bleu(examples: Sequence[Example], answers: Sequence[str]) -> Figure:
    """BLEU of plain text, upper and lower case apart, as sacrebleu counts it."""
    found = score("bleu", answers, [example.references for example in examples])
    return Figure("bleu", found.value, found.signature, True)


def bleu_lowercase(examples: Sequence[Example], answers: Sequence[str]) -> Figure:
    """BLEU of tokens in lower case, beside papers whose text was made so before training."""
    return _lowercase("bleu-lc", BLEU(lowercase=True, force=True), _streams(examples), answers)


def bleu_of_tokens(examples: Sequence[Example], answers: Sequence[str]) -> Figure:
    """BLEU of the tokens of Moses in lower case, as papers on older sets count it.

    Sacrebleu leaves `l'homme` whole, Moses makes `l'` and `homme` of it, of which one is easy. The
    group of an example is its language.
    """
    from sacremoses import MosesTokenizer, __version__

    moses = MosesTokenizer(lang=examples[0].group)

    def cut(texts: Iterable[str]) -> list[str]:
        return [moses.tokenize(text, escape=False, return_str=True) for text in texts]

    metric = BLEU(lowercase=True, tokenize="none", force=True)
    found = _lowercase("bleu-tok", metric, list(map(cut, _streams(examples))), cut(answers))
    signature = found.signature.replace("tok:none", f"tok:moses-{__version__}")
    return replace(found, signature=signature)


def _streams(examples: Sequence[Example]) -> list[Sequence[str]]:
    """All first references, all second ones: sets here have as many for each sentence."""
    return list(zip(*(example.references for example in examples), strict=True))


def _lowercase(
    name: str, metric: BLEU, streams: Sequence[Sequence[str]], answers: Sequence[str]
) -> Figure:
    value = metric.corpus_score(list(answers), streams).score
    return Figure(name, float(value), f"bleu|{metric.get_signature().format()}", True)


def by_group(count: Count) -> Count:
    """The figure of each group by itself, then their mean: large groups do not count for more."""

    def counted(examples: Sequence[Example], answers: Sequence[str]) -> Figure:
        rows: dict[str, tuple[list[Example], list[str]]] = {}
        for example, answer in zip(examples, answers, strict=True):
            mine = rows.setdefault(example.group, ([], []))
            mine[0].append(example)
            mine[1].append(answer)
        each = {name: count(*rows[name]) for name in sorted(rows)}
        first = next(iter(each.values()))
        return Figure(
            first.name,
            fmean(figure.value for figure in each.values()),
            f"{first.signature}|mean-of:{len(each)}",
            first.higher_is_better,
            {name: figure.value for name, figure in each.items()},
        )

    return counted
