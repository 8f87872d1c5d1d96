"""`python -m fuzz`: crafted files and command lines, thousands of them."""

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from fuzz.cases import make_bases, make_case
from fuzz.runner import run_cases, summary


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=5000, help="how many")
    parser.add_argument("--seed", type=int, default=1, help="chooses the cases")
    parser.add_argument("--case", type=int, help="this one alone, whose files are kept")
    parser.add_argument("--kind", help="cases of this kind alone, such as media")
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    if given.kind is not None:
        os.environ["FUZZ_KIND"] = given.kind
    folder = Path(tempfile.mkdtemp(prefix="regard-fuzz-"))
    if given.case is not None:
        (folder / "kept" / "bases").mkdir(parents=True)
        (folder / "kept" / "case").mkdir()
        (folder / "kept" / "canary").mkdir()
        (folder / "kept" / "canary" / "notes.txt").write_text("mine")
        make_bases(folder / "kept" / "bases")
        places = (folder / "kept" / name for name in ("bases", "case", "canary"))
        print(make_case(given.seed, given.case, *places))
    numbers = range(given.cases) if given.case is None else [given.case]
    began, verdicts = time.monotonic(), []
    for verdict in run_cases(list(numbers), given.seed, given.workers, folder / "work"):
        verdicts.append(verdict)
        if verdict.problem:
            print(f"{verdict.number}: {verdict.kind}: {verdict.problem}", flush=True)
        if len(verdicts) % 500 == 0:
            print(f"{len(verdicts):,} cases after {time.monotonic() - began:.0f} s", flush=True)
    print(summary(verdicts, given.seed))
    shutil.rmtree(folder if given.case is None else folder / "work")
    return int(any(verdict.problem for verdict in verdicts))


if __name__ == "__main__":
    sys.exit(main())
