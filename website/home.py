"""Make what the home page shows: a live map in each language, and its three pictures."""

import json
from collections.abc import Mapping
from html import escape
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import regard
from regard.messages import use_language
from regard.seeing.draw.figure import svg
from regard.seeing.draw.shapes import PAGE, number_duplicates
from regard.seeing.page import html_page
from regard.seeing.trace.view import select
from website.gallery import FOLDER

ROOT: Final = Path(__file__).resolve().parents[1]
RESULTS: Final = ROOT / "benchmarks" / "results" / "two-minutes.json"
#: models and sources of the live map; the first is shown
EXAMPLES: Final = {
    "en": [
        ("translate-en-de", "Can you help me?"),
        ("g2p", "attention"),
        ("dates", "Thursday, January 3, 1991"),
        ("reader", "The FBI is chasing a criminal on the run."),
    ],
    "zh": [
        ("translate-en-zh", "Where is the nearest station?"),
        ("g2p", "attention"),
        ("dates", "Thursday, January 3, 1991"),
        ("reader", "The FBI is chasing a criminal on the run."),
    ],
}
#: the output that the live map shows first: that of a word which takes another place
FIRST_ROW: Final = {"en": 3, "zh": 0}
#: the source of the picture of a map
SEEN: Final = {
    "en": ("translate-en-fr", "Where is my cat?"),
    "zh": ("translate-en-zh", "Where is my cat?"),
}
#: the embedded page shows its map and nothing around it
EMBEDDED: Final = (
    "<style>.top, footer, .under, .sentence, .controls, .meta, #app .buttons, [data-place=save]"
    " { display: none } body { padding: 0.75rem }</style></head>"
)
#: data sets of the chart, with their names
NAMES: Final = {
    "spoken": ("spoken digits, WAV", "口述数字，WAV"),
    "digits": ("handwritten digits, JPEG", "手写数字，JPEG"),
    "cmudict": ("pronunciation, TSV", "单词发音，TSV"),
    "babi": ("stories and questions, TSV", "故事问答，TSV"),
    "illness": ("influenza, CSV", "流感病例，CSV"),
    "squad": ("questions, JSON", "阅读理解，JSON"),
    "shakespeare": ("Shakespeare, TXT", "莎士比亚，TXT"),
    "etth1": ("oil temperature, CSV", "变压器油温，CSV"),
    "exchange": ("exchange rates, CSV", "汇率，CSV"),
    "stars": ("star ratings, CSV", "星级评分，CSV"),
    "ptb": ("news, TXT", "新闻，TXT"),
    "chinese": ("English to Chinese, TSV", "英译中，TSV"),
    "reviews": ("film reviews, CSV", "影评，CSV"),
}


def make(out: Path) -> dict[str, dict[str, Any]]:
    """Write the live maps, and return what the template needs in each language."""
    return {language: _language(out, language) for language in EXAMPLES}


def _language(out: Path, language: str) -> dict[str, Any]:
    with use_language(language):
        traces = [regard.load(model)(text).trace for model, text in EXAMPLES[language]]
        page = html_page.render(traces, title="regard").replace("</head>", EMBEDDED, 1)
        (out / FOLDER / f"home-{language}.html").write_text(page, encoding="utf-8")
        model, text = SEEN[language]
        return {
            "map": f"{FOLDER}/home-{language}.html",
            "first": FIRST_ROW[language],
            "models": len(list((ROOT / "src" / "regard" / "bundled").glob("*/card.json"))),
            "seen": _figure(regard.load(model)(text).trace),
            "see": f'regard show {model} "{text}"',
            "checked": checked(),
            "chart": chart(json.loads(RESULTS.read_text("utf-8")), language),
        }


def _figure(trace: Any) -> str:
    return svg(select(trace), theme=PAGE)


def checked() -> list[dict[str, Any]]:
    """Return the phonemes of "phonology", with what each looked at and what it needed."""
    trace = regard.load("g2p").check("phonology", methods="ablation,attention")
    letters = number_duplicates(trace.source.labels)
    rows = zip(
        trace.target.labels,
        trace.derived["attention"],
        trace.derived["ablation"],
        strict=True,
    )
    return [
        {
            "phoneme": phoneme,
            "looked": letters[looked.argmax()],
            "needed": letters[needed.argmax()],
        }
        for phoneme, looked, needed in rows
        if phoneme.isalpha()  # no end of the word
    ]


def error_left(record: Mapping[str, Any]) -> float:
    """Return the error of a model as a share of the simple way's, from a score and its metric."""
    score, simple = record["score"], record["simple"]
    if record["metric"] in ("mse", "nats per character"):
        return float(score / simple)
    best = 100 if record["metric"] in ("chrf", "bleu") else 1
    return float((best - score) / (best - simple))


def chart(results: Mapping[str, Any], language: str) -> list[dict[str, Any]]:
    """Return a bar for each data set: its name and its error, the shortest first."""
    left: dict[str, list[float]] = {}
    for record in results["records"]:
        if record.get("simple") and record.get("score") is not None:
            left.setdefault(record["case"], []).append(error_left(record))
    bars = [
        {
            "name": escape(NAMES.get(case, (case, case))[language == "zh"]),
            "percent": round(100 * fmean(values)),
        }
        for case, values in left.items()
    ]
    return sorted(bars, key=lambda bar: bar["percent"])
