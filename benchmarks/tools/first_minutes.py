"""Time the first minutes of a newcomer, in an empty environment, from `pip install` of the wheel.

    python -m benchmarks.tools.first_minutes --output benchmarks/results/first-minutes.json

Four moments, in seconds since pip was started: the package is installed, the first map is drawn,
the live page can be read, and a model trained on one's own file has made a prediction. The last
one is the defaults of `regard train` with a budget of one minute, on 2,000 pairs.
"""

import argparse
import gzip
import os
import tempfile
import time
from pathlib import Path

from benchmarks import harness
from benchmarks.tools.release_check import build
from benchmarks.tools.wheel_check import Environment

PAIRS = 2000
MINUTES = 1


def own_file(path: Path) -> None:
    """Write pairs as a newcomer may have them: words and their pronunciation."""
    words = harness.ROOT / "src" / "regard" / "bundled" / "cmudict" / "train.tsv.gz"
    with gzip.open(words, "rt", encoding="utf-8") as lines:
        path.write_text("".join(line for line, _ in zip(lines, range(PAIRS), strict=False)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    moments: dict[str, float] = {}
    load = {"before": os.getloadavg()[0]}  # processes of others that want the same cores

    def note(name: str) -> None:
        moments[name] = round(time.perf_counter() - start, 1)
        print(f"{moments[name]:8.1f} s  {name}", flush=True)

    with tempfile.TemporaryDirectory(prefix="regard-first-") as folder:
        wheel = build(Path(folder) / "build").wheel
        home = Path(folder) / "home"
        start = time.perf_counter()
        environment = Environment(home, wheel, "serve")
        note("installed: regard[serve]")
        shown = environment.run("regard show g2p attention")
        assert "SH" in shown, shown
        note("first map: regard show g2p attention")
        with environment.served("regard serve --port 0") as page:
            assert "<title>" in page
            note("live page: regard serve")
        own_file(home / "own.tsv")
        environment.run(f"regard train own.tsv -o run minutes={MINUTES} --quiet")
        predicted = environment.run("echo ATTENTION | regard predict run")
        note(f"own model: regard train own.tsv minutes={MINUTES}; regard predict run")
    load["after"] = os.getloadavg()[0]
    harness.write(
        args.output,
        {
            **harness.provenance(),
            "load_average": load,
            "pairs": PAIRS,
            "predicted": predicted.strip(),
            "seconds_since_pip_was_started": moments,
        },
    )


if __name__ == "__main__":
    main()
