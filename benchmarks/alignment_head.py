"""Name the alignment head of a transformer that learns NETtalk: letters to phonemes, with gold.

Trains a small transformer for a few minutes, runs `regard heads` with the gold alignment on words
that it has not seen, and writes each head's habits, importance and alignment error rate.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

from alignment import nettalk, regard
from provenance import ROOT, command, machine, source


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--minutes", type=float, default=2.5, help="of training")
    parser.add_argument("--pairs", type=int, default=400, help="that heads are judged by")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        nettalk(args.data, folder)
        run, limits = folder / "run", [f"minutes={args.minutes}", f"device={args.device}"]
        settings = ["size=tiny", "eval_pairs=300", *limits]
        regard("train", str(folder / "train.tsv"), "-p", "transformer", "-o", str(run), *settings)
        found = json.loads(
            regard(
                *("heads", str(run), str(folder / "test.tsv"), "--gold", str(folder / "test.gold")),
                *("--limit", str(args.pairs), "--device", args.device, "--json"),
            )
        )
        last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    kept = {name: value for name, value in found.items() if name not in ("examples", "model")}
    about = {"command": command(["python", *sys.argv]), "machine": machine(), **source()}
    result = {**about, "last_evaluation": last, "heads": kept}
    args.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
