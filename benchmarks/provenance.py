"""Provenance of results: machine, commit and command, without names of the computer or its user."""

import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def machine() -> dict[str, Any]:
    """Return what times depend on, apart from threads and the version of torch."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if sys.platform == "linux" else []
    fields = [tuple(part.strip() for part in line.split(":", 1)) for line in lines if ":" in line]
    names = [value for name, value in fields if name == "model name"]
    flags = {flag for name, value in fields if name == "flags" for flag in value.split()}
    return {
        "system": platform.system(),
        "architecture": platform.machine(),
        "cpu": names[0] if names else platform.processor(),
        "cores": len(names) or None,
        "units": sorted(flags & {"avx2", "avx512f", "avx512_bf16", "amx_bf16", "amx_int8"}),
        "python": platform.python_version(),
    }


def source() -> dict[str, Any]:
    """Return the commit that was measured, and whether files differ from it.

    A copy that is no checkout of its own gets its commit by the environment: REGARD_COMMIT.
    """
    if "REGARD_COMMIT" in os.environ:
        return {"commit": os.environ["REGARD_COMMIT"], "changed_since": None}
    return {
        "commit": git("rev-parse", "HEAD"),
        "changed_since": bool(git("status", "--porcelain")),
    }


def git(*args: str) -> str | None:
    """Return the output of git, or None outside of a checkout."""
    try:
        done = subprocess.run(["git", *args], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def write(file: Path | None, result: dict[str, Any]) -> None:
    """Write a result as JSON, if a file is given."""
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(result, indent=2) + "\n")


def cut_short(result: dict[str, Any], missing: str) -> list[str]:
    """Return lines about a run that was cut short."""
    if result.get("complete", True):
        return []
    return [f"The run was cut short by its limit of time: {missing}.", ""]


def command(args: list[str]) -> str:
    """Return a command line without the folders of this computer."""
    return " ".join(
        Path(arg).name if "/" in arg and not arg.startswith("-") else arg for arg in args
    )


def made_by(result: dict[str, Any]) -> str:
    """Return the first line of a section: the command that reproduces its records."""
    typed = re.sub(r"^python (?=\w+\.py)", "python benchmarks/", result["command"])
    return f"Made by `{typed}`, rendered by a script; no number is typed."


def peak_rss_mb() -> float:
    """Return the peak memory of this process in MiB.

    `ru_maxrss` would count the parent's memory at the time of the fork, too.
    """
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) / 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024 * 1024 if sys.platform == "darwin" else 1024)
