"""Descriptions of the tables that documents show: what is a row, what are its columns.

A table is flat, with a row for each record, or pivoted, with a column for each value of a field.
Cells are format strings over the fields of a record; one whose field is missing is empty.
"""

import re
import statistics
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from benchmarks.harness import Record
from benchmarks.peers.cases import CASES

Extra = Callable[[dict[str, Record]], str]

PRECISIONS: Final = {"32": "float32", "bf16": "bf16"}
ENGINES: Final = {
    "regard": "regard",
    "hf": "Hugging Face",
    "ctranslate2": "CTranslate2",
    "before": "regard at {before}",
}
CLOCKS: Final = {
    "wall": "By the clock on the wall.",
    "cpu": "In seconds of the processor, since other programs used the machine at the same time.",
}
#: columns of the comparison with other toolkits: the name of a system and its precision
PEERS: Final = {
    ("joeynmt", "32"): "JoeyNMT",
    ("OpenNMT-py", "32"): "OpenNMT-py",
    ("eole", "32"): "Eole",
    ("yoyodyne", "32"): "yoyodyne",
    ("ctranslate2", "32"): "CTranslate2",
    ("ctranslate2", "int8"): "CTranslate2 int8",
    ("regard", "32"): "regard",
    ("regard", "bf16"): "regard bf16",
}
UNITS: Final = {"train": "tokens_per_s", "predict": "sentences_per_s"}


class Cells(string.Formatter):
    """Format strings in which `:auto` gives small numbers a decimal."""

    def format_field(self, value: Any, format_spec: str) -> Any:
        """Format one value."""
        if format_spec == "auto":
            format_spec = ",.0f" if value >= 100 else ".1f"
        return super().format_field(value, format_spec)

    def cell(self, form: str, record: Record) -> str:
        """Return the text of a cell; empty if the record lacks a field of it."""
        try:
            return self.vformat(form, (), record)
        except (KeyError, TypeError):
            return ""


CELLS: Final = Cells()


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> str:
    """Return a Markdown table; all columns but the first `left` are right-aligned."""
    rule = ["---"] * left + ["--:"] * (len(head) - left)
    cells = [[cell.replace("|", "\\|") for cell in row] for row in [head, *rows]]
    return "".join(f"| {' | '.join(row)} |\n" for row in [cells[0], rule, *cells[1:]])


def flat(records: Iterable[Record], columns: Mapping[str, str], *, left: int = 1) -> str:
    """Return a table with a row for each record."""
    rows = [[CELLS.cell(form, record) for form in columns.values()] for record in records]
    return table([*columns], rows, left=left)


def pivot(
    records: Iterable[Record],
    index: Mapping[str, str],
    across: str,
    value: str,
    titles: Mapping[str, str] | None = None,
    extra: Mapping[str, Extra] | None = None,
) -> str:
    """Return a table with a column for each value of `across`.

    Args:
        records: what is shown.
        index: titles and format strings of the first columns; records that agree share a row.
        across: format string of what tells the columns apart.
        value: format string of their cells.
        titles: of the columns, in their order; columns without records are left out.
        extra: more columns, each from the records of a row by column.
    """
    rows: dict[tuple[str, ...], dict[str, Record]] = {}
    for record in records:
        key = tuple(CELLS.cell(form, record) for form in index.values())
        rows.setdefault(key, {})[CELLS.cell(across, record)] = record
    found = dict.fromkeys(column for row in rows.values() for column in row)
    names = {c: t for c, t in titles.items() if c in found} if titles else {c: c for c in found}
    more = extra or {}
    return table(
        [*index, *names.values(), *more],
        [
            [
                *key,
                *(CELLS.cell(value, row[name]) if name in row else "" for name in names),
                *(function(row) for function in more.values()),
            ]
            for key, row in rows.items()
        ],
    )


def ratio(first: str, other: str, field: str) -> Extra:
    """Return the column of one column's field divided by another's."""

    def cell(row: dict[str, Record]) -> str:
        one, two = (row.get(name, {}).get(field) for name in (first, other))
        return f"{one / two:.2f}x" if one and two else ""

    return cell


def grouped(records: Iterable[Record], *names: str) -> dict[tuple[Any, ...], list[Record]]:
    """Return the records of each combination of values, in the order of their first ones."""
    found: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        found.setdefault(tuple(record[name] for name in names), []).append(record)
    return found


def made(result: Record) -> str:
    """Return command, machine, versions and commit of a result."""
    machine = result["machine"]
    count = machine.get("threads")
    where = machine.get("gpu") or machine["cpu"]
    if "gpu" not in machine and count:
        where += f", {count} thread{'s' if count > 1 else ''}"
    on_gpu = ("triton", "cuda") if "gpu" in machine else ()
    packages = ("torch", *on_gpu, "transformers", "ctranslate2")
    parts = [where, *(f"{name} {machine[name]}" for name in packages if name in machine)]
    changed = " with changes" if result["changed_since"] else ""
    parts.append(f"commit {(result['commit'] or 'unknown')[:12]}{changed}")
    typed = re.sub(r"^python (?=\w+\.py)", "python benchmarks/", result["command"])
    text = f"Made by `{typed}`.\n{', '.join(parts)}.\n\n"
    if not result.get("complete", True):
        text += "The run was cut short by its limit of time: some rows are missing.\n\n"
    return text


def decoding(result: Record) -> str:
    """Return the tables of benchmarks.speed.decoding."""
    records, settings = result["records"], result["settings"]
    before = (result["before"] or "another commit")[:7]
    titles = {name: title.format(before=before) for name, title in ENGINES.items()}
    model = {"model": "{preset} {size}", "batch": "{batch}"}
    text = made(result) + f"Medians of {settings['rounds']} rounds. {CLOCKS[settings['clock']]}\n"
    for (beam, precision), some in grouped(records, "beam", "precision").items():
        present = {record["engine"] for record in some} - {"regard"}
        ratios = {
            f"regard / {title.removeprefix('regard at ')}": ratio("regard", name, "sentences_per_s")
            for name, title in titles.items()
            if name in present
        }
        rates = pivot(some, model, "{engine}", "{sentences_per_s:auto}", titles, ratios)
        text += f"\nBeam {beam}, {PRECISIONS[precision]}:\n\n{rates}"
    index = {**model, "beam": "{beam}", "type": "{type}"}
    typed = [record | {"type": PRECISIONS[record["precision"]]} for record in records]
    single = [record for record in typed if "ms_per_token" in record]
    latency = pivot(single, index, "{engine}", "{ms_per_token:.2f}", titles)
    text += f"\nMilliseconds per token at batch 1:\n\n{latency}"
    memory = "Most memory that torch has allocated on the GPU in MiB, weights included"
    if result["machine"]["device"] == "cpu":
        memory = "Most memory of the whole process in MiB, libraries included"
    elif not all("start_mib" in record for record in records):
        memory += " and what libraries had kept of the rows above"
    peaks = pivot(typed, index, "{engine}", "{peak_mib:,.0f}", titles)
    return f"{text}\n{memory}:\n\n{peaks}"


def training(result: Record) -> str:
    """Return the table of benchmarks.speed.training."""
    records = result.get("records") or result["speed"]
    backends = sorted(dict.fromkeys(r["backend"] for r in records), key=lambda b: b != "graphs")
    titles = {backend: f"`{backend}`" for backend in backends}
    first, *others = backends
    ratios = {f"`{first}` / `{b}`": ratio(first, b, "tokens_per_s") for b in others}
    index = {"preset": "{preset}", "size": "{size}", "batch": "{batch_tokens}"}
    return pivot(records, index, "{backend}", "{tokens_per_s:,.0f}", titles, ratios)


def toolkits(reports: Sequence[Record]) -> str:
    """Return the comparison with other toolkits; a case of a later report replaces it."""
    last: dict[tuple[str, str], list[Record]] = {}
    for report in reports:
        last |= grouped(report["records"], "case", "mode")
    order = [(case, mode) for mode in UNITS for case in CASES if (case, mode) in last]
    rows = []
    for case, mode in order:
        for (system, precision), runs in grouped(last[case, mode], "system", "precision").items():
            seconds = sum(run["seconds"] for run in runs)
            work = sum(run[UNITS[mode]] * run["seconds"] for run in runs)
            column = PEERS[system, precision]
            rows.append({"case": case, "mode": mode, "column": column, "speed": work / seconds})

    def against(title: str) -> Extra:
        peers = [name for (who, bits), name in PEERS.items() if who != "regard" and bits == "32"]

        def cell(row: dict[str, Record]) -> str:
            fastest = max((row[name]["speed"] for name in peers if name in row), default=None)
            return f"{row[title]['speed'] / fastest:.2f}x" if fastest and title in row else ""

        return cell

    titles = {title: title for title in PEERS.values()}
    names = {"32 bits / fastest peer's": "regard", "bf16 / fastest peer's": "regard bf16"}
    extra = {name: against(title) for name, title in names.items()}
    shown = pivot(rows, {"case": "({case}) {mode}"}, "{column}", "{speed:auto}", titles, extra)
    some = [record for case in last.values() for record in case]
    versions = sorted({f"{record['system']} {record['version']}" for record in some})
    machine, first = reports[0]["machine"], some[0]
    commits = dict.fromkeys((report["commit"] or "no commit")[:12] for report in reports)
    cases = "; ".join(f"({name}) {case.title}" for name, case in CASES.items())
    return (
        f"{shown}\nTraining: source and target tokens per second. Prediction: sentences per "
        f"second, beam 5, batch 32, 20 tokens each. {machine['cpu']}, {machine['cores']} cores, "
        f"{first['threads']} threads, torch {first['torch']}; {', '.join(versions)}; measured at "
        f"{', '.join(commits)}. {cases}.\n"
    )


def prediction(result: Record) -> str:
    """Return the tables of benchmarks.speed.prediction."""
    timed = [record for record in result["records"] if record["case"] != "quality"]
    names = {"before": "before", "regard": "regard", "ctranslate2": "CTranslate2"}
    shown = [record | {"name": names[record["system"]]} for record in timed]
    index, across = {"case": "{case}"}, "{name} {precision}"
    text = pivot(shown, index, across, "{cpu_ms_per_sentence:.1f}") + (
        f"\nMilliseconds of CPU time for a sentence; threads: {timed[0]['threads']}, medians of "
        f"{timed[0]['rounds']} turns; {result['machine']['cpu']}, measured at "
        f"{str(result['commit'])[:12]}.\n"
    )
    quality = [record for record in result["records"] if record["case"] == "quality"]
    columns = {"precision": "{precision}", "equal answers": "{equal_answers:.1%}"}
    columns |= {"PER": "{per:.2%}", "exact": "{exact:.2%}"}
    words = f"The bundled model on {quality[0]['words']:,} test words of CMUdict.\n"
    return f"{text}\n{flat(quality, columns)}\n{words}"


def precision(result: Record) -> str:
    """Return BLEU of a translation model in each precision."""
    records = [
        r | ({"equal": r["equal_to_32"] / result["pairs"]} if "equal_to_32" in r else {})
        for r in result["records"]
    ]
    columns = {"device": "{device}", "precision": "{precision}", "equal answers": "{equal:.1%}"}
    return flat(records, columns | {"BLEU": "{bleu:.2f}", "chrF": "{chrf:.2f}"}, left=2)


def word_alignment(result: Record) -> str:
    """Return error rates of word alignments by the number of pairs that were counted."""
    columns = {"links by": "{what}", "training pairs": "{pairs:,}", "AER": "{aer:.1%}"}
    columns |= {"precision": "{precision:.1%}", "recall": "{recall:.1%}"}
    return flat(result["records"], columns)


def fine_tuning(result: Record) -> str:
    """Return the test scores of fine-tuned models beside others, means over seeds."""
    scored = [record for record in result["records"] if "test" in record]
    records = []
    for (case, size, way), runs in grouped(scored, "case", "size", "way").items():
        found = {"case": case, "size": 0 if way == "as it is" else size, "way": way}
        means = {
            name: f"{statistics.mean(run[name] for run in runs):.2f}"
            for name in ("test", "old")
            if name in runs[0]
        }
        seeds = f" ({len(runs)})" if len(runs) > 1 else ""
        records.append({**found, "shown": f"{' / '.join(means.values())}{seeds}"})
    records.sort(key=lambda record: (record["case"], record["size"]))
    index = {"test set": "{case}", "examples": "{size:,}"}
    return f"{pivot(records, index, '{way}', '{shown}')}\n{made(result)}"


def export(result: Record) -> str:
    """Return the table of exported models beside `regard predict`."""
    records = result.get("records") or result["cases"]
    shown = [r | {"millions": r["parameters"] / 1e6} for r in records]
    index = {
        "model": "{model} ({preset}, {millions:.1f} M weights)",
        "engine": "{engine}, {precision}",
    }
    columns = {"equal predictions": "{equal:.1%}", "phoneme error rate": "{per:.2%}"}
    extra: dict[str, Extra] = {
        title: lambda row, form=form: CELLS.cell(form, row["32"]) for title, form in columns.items()
    }
    titles = {"32": "batch 32", "1": "batch 1"}
    speed = "{words_per_second:,.0f} ({times_regard:.2f}x)"
    return (
        f"{result['machine']['cpu']}, one thread, beam {result['settings']['beam']}: words of the "
        "CMU dictionary per second of the processor, and times the speed of `regard predict` in "
        f"the same run.\n\n{pivot(shown, index, '{batch}', speed, titles, extra)}"
    )


def models() -> str:
    """Return the tables of the bundled models, from their cards."""
    from regard.api import bundled_models
    from regard.api.bundled_models import licence, megabytes
    from regard.messages import use_language

    with use_language("en"):
        names = sorted(bundled_models.names(), key=lambda n: (n != bundled_models.DEFAULT, n))
        cards = [card for name in names if (card := bundled_models.card(name)) is not None]
        rows = [
            {
                "name": card.name,
                "what": card.said.what,
                "rows": card.score.rows,
                "score": f"{card.score.label} {card.score.shown(card.score.value)}",
                "ends": card.score.ends,
                "licence": licence(card),
                "data": card.said.data,
                "weights": card.weights,
                "size": megabytes(bundled_models.size(card.name)),
                "loss": card.loss,
                "ms": card.ms_per_source,
                "threads": card.threads,
            }
            for card in cards
        ]
        total = megabytes(sum(bundled_models.size(card.name) for card in cards))
        commands = "\n".join(line for card in cards for line in card.show_commands[:2])
    scores = {"model": "`{name}`", "what it does": "{what}", "test rows": "{rows:,}"}
    scores |= {"score": "{score}", "95% interval": "{ends}", "licence": "{licence}"}
    stored = {"model": "`{name}`", "data": "{data}", "weights": "{weights:,}", "size": "{size}"}
    stored |= {"stored in": "{loss}", "ms per source": "{ms:.0f} ({threads})"}
    tables = f"{flat(rows, scores, left=6)}\n{flat(rows, stored, left=6)}"
    return f"{tables}\nAll together they take {total}.\n\n## Try them\n\n```sh\n{commands}\n```\n"
