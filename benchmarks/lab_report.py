"""Write the report of a full run of the lab to docs/, from its saved results.

    regard lab --full --seeds 3 --device cuda --data DATA -o DIR
    python benchmarks/lab_report.py DIR     # takes over its results, then writes the report
    python benchmarks/lab_report.py         # writes the report of the results that are here

Nothing is measured here: verdicts, figures and tables are functions of benchmarks/results/lab.
"""

import argparse
import shutil
import tempfile
from pathlib import Path

from regard.lab import report, runner

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "lab"
PAGE = ROOT / "docs" / "lab-report"


def write(into: Path, *, pictures: bool = True) -> None:
    """Write the report of the saved results, and its figures as SVG."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(RESULTS, folder / runner.RESULTS_DIR)
        print(report.summarise(report.write(folder)))
        into.mkdir(parents=True, exist_ok=True)
        shutil.copy(folder / "report.md", into / "README.md")
        if not pictures:
            return
        shutil.rmtree(into / report.FIGURES_DIR, ignore_errors=True)
        (into / report.FIGURES_DIR).mkdir()
        for path in sorted((folder / report.FIGURES_DIR).glob("*.svg")):
            shutil.copy(path, into / report.FIGURES_DIR)


def main() -> None:
    """Copy results from a folder, if one is named, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, help="what `regard lab -o` wrote")
    folder = parser.parse_args().folder
    if folder is not None:
        RESULTS.mkdir(parents=True, exist_ok=True)
        for path in sorted((folder / runner.RESULTS_DIR).glob("*.json")):
            shutil.copy(path, RESULTS)
    write(PAGE)


if __name__ == "__main__":
    main()
