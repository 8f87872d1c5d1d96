"""Installs the peers into throw-away virtual environments, one for each, next to one torch."""

import argparse
import subprocess
import sys
import venv
from pathlib import Path
from typing import Final

TORCH: Final = "torch==2.13.0"

#: what to ask pip for, and what to remove again
PEERS: Final[dict[str, tuple[list[str], list[str]]]] = {
    "joeynmt": (["joeynmt==2.3.0", "importlib_metadata"], []),  # which it forgets to ask for
    "opennmt": (["OpenNMT-py==3.5.1"], []),
    "eole": (["eole==0.6.4"], []),
    "yoyodyne": (["yoyodyne==0.5.0"], ["torchvision"]),
    "ctranslate2": (["ctranslate2==4.8.0"], []),
}


def install(name: str, envs: Path) -> None:
    """Torch first, then the peer, which must be content with it: so no CUDA package is pulled."""
    wanted, unwanted = PEERS[name]
    folder = envs / name
    venv.create(folder, with_pip=True, clear=True)
    constraints = envs / "constraints.txt"
    constraints.write_text(f"{TORCH}\n")
    pip = [str(folder / "bin" / "python"), "-m", "pip"]
    limits = ["--quiet", "--constraint", str(constraints)]
    subprocess.run([*pip, "install", *limits, TORCH, "setuptools<81", "wheel"], check=True)
    subprocess.run([*pip, "install", *limits, *wanted], check=True)
    if unwanted:
        subprocess.run([*pip, "uninstall", "--quiet", "--yes", *unwanted], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--envs", type=Path, required=True, help="folder for the environments")
    parser.add_argument("--peers", default=",".join(PEERS), help="which, with commas between them")
    args = parser.parse_args()
    args.envs.mkdir(parents=True, exist_ok=True)
    failed = []
    for name in args.peers.split(","):
        try:
            install(name, args.envs)
        except subprocess.CalledProcessError as error:
            failed.append(f"{name}: {error}")
    sys.exit("\n".join(failed))


if __name__ == "__main__":
    main()
