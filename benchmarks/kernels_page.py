"""Write docs/kernels.md and its figures from the results of the kernel benchmarks.

    python benchmarks/kernels_page.py

Records that are not there are left out, so that each benchmark may be run alone.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

import cpu_kernels  # noqa: E402
import kernel_bars  # noqa: E402
import kernels  # noqa: E402
import losses  # noqa: E402
import recurrence  # noqa: E402
import recurrence_phases  # noqa: E402
import training_page  # noqa: E402

HEAD = """# The kernels on a GPU and on the CPU

Written by `python benchmarks/kernels_page.py` from the records in benchmarks/results; no number
is typed. Each section names the script that measured it.
"""


def read(folder: Path, name: str) -> dict[str, Any] | None:
    file = folder / f"{name}.json"
    return json.loads(file.read_text()) if file.is_file() else None


def write_figures(figures: dict[str, Any], folder: Path) -> list[str]:
    """Write figures as SVG and return their paths relative to the page."""
    from regard.lab import plots

    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as drawn:
        for stem, figure in figures.items():
            plots.save(figure, Path(drawn), stem)
            svg = (Path(drawn) / f"{stem}.svg").read_text(encoding="utf-8")
            # matplotlib ends lines with spaces
            lines = [line.rstrip() for line in svg.splitlines()]
            (folder / f"{stem}.svg").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return [f"figures/{stem}.svg" for stem in figures]


def page(results: Path, docs: Path) -> str:
    """Return the whole page, and write its figures."""
    sections = [HEAD]
    bars, attention, rnn, training = (
        read(results, f"{n}-h200") for n in ("kernel-bars", "kernels", "recurrence", "training")
    )
    if bars is not None:
        sections.append(kernel_bars.render(bars))
    if attention is not None:
        figures = kernels.draw(attention["sweep"]) if attention.get("sweep") else {}
        sections.append(kernels.render(attention, write_figures(figures, docs / "figures")))
    if rnn is not None:
        sections.append(recurrence.render(rnn))
    phases = read(results, "recurrence-phases-h200")
    if phases is not None:
        sections.append(recurrence_phases.render(phases))
    if training is not None:
        drawn = training_page.draw(training)
        figures = {} if drawn is None else {"training-loss": drawn}
        places = write_figures(figures, docs / "figures")
        sections.append(training_page.render(training, places[0] if places else None))
    loss_records, on_cpu = read(results, "losses-h200"), read(results, "cpu-kernels")
    if loss_records is not None:
        sections.append(losses.render(loss_records))
    if on_cpu is not None:
        sections.append(cpu_kernels.render(on_cpu))
    return "\n".join(sections)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs")
    args = parser.parse_args()
    (args.docs / "kernels.md").write_text(page(args.results, args.docs), encoding="utf-8")


if __name__ == "__main__":
    main()
