"""Time beam search on a GPU with finished rows removed at once, or some steps later.

    python benchmarks/search_lag.py --json benchmarks/results/search-lag-h200.json

Targets are as long as their sources, so that rows leave step by step. The number that is best is
`GPU_LAG` in src/regard/decoding/batch_pruning.py.
"""

import argparse
import itertools
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

import provenance  # noqa: E402
from regard.decoding import DecodingOptions, beam_search  # noqa: E402
from regard.models import PRESETS  # noqa: E402

VOCAB, ROWS, LENGTH = 8000, 64, 24
NAMES: Final = ("bahdanau", "gnmt", "transformer")
LAGS: Final = {"at once": 0, "1": 1, "2": 2, "4": 4}
#: searches that are not timed, and those that are
FIRST, TIMED = 2, 5


def milliseconds(model: Any, source: list[torch.Tensor], beam: int, lag: int) -> list[float]:
    """Return the time of each search."""
    options = DecodingOptions(beam=beam, max_len_ratio=1.0, max_len_extra=2)
    spans = []
    with patch("regard.decoding.search.lag_for", lambda device: lag):
        for _ in range(FIRST + TIMED):
            wait(source[0].device)
            began = time.perf_counter()
            beam_search(model, *source, options)
            wait(source[0].device)
            spans.append(1e3 * (time.perf_counter() - began))
    return spans[FIRST:]


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write to FILE too")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--size", default="small", help="of the models")
    args = parser.parse_args()
    machine = provenance.machine() | {"torch": torch.__version__}
    if args.device == "cuda":
        machine["gpu"] = torch.cuda.get_device_name()
    result: dict[str, Any] = {
        "command": provenance.command(["python", "benchmarks/search_lag.py", *sys.argv[1:]]),
        "machine": machine,
        **provenance.source(),
        "records": [],
    }
    torch.manual_seed(1)
    src = torch.randint(4, VOCAB, (ROWS, LENGTH))
    source = [x.to(args.device) for x in (src, torch.randint(6, LENGTH + 1, (ROWS,)))]
    for name in NAMES:
        model = PRESETS[name](VOCAB, VOCAB, args.size).to(args.device).eval()
        for beam, lag in itertools.product((1, 5), LAGS):
            spans = milliseconds(model, source, beam, LAGS[lag])
            found = {"ms": statistics.median(spans), "best_ms": min(spans)}
            result["records"].append({"preset": name, "beam": beam, "lag": lag, **found})
            print(json.dumps(result["records"][-1]), flush=True)
            provenance.write(args.json, result)


if __name__ == "__main__":
    main()
