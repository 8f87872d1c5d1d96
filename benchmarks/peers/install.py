"""Install the other toolkits into virtual environments of their own, next to one torch."""

import argparse
import subprocess
import sys
import venv
from pathlib import Path
from typing import Final, NamedTuple

TORCH: Final = "torch==2.13.0"


class Peer(NamedTuple):
    """Packages of a toolkit, as pip takes them.

    Attributes:
        wanted: with all that they ask for themselves.
        unwanted: removed again.
    """

    wanted: tuple[str, ...]
    unwanted: tuple[str, ...] = ()


PEERS: Final = {
    "joeynmt": Peer(("joeynmt==2.3.0", "importlib_metadata")),  # which it forgets to ask for
    "eole": Peer(("eole==0.6.4", "aiohttp")),  # which it forgets to ask for
    "yoyodyne": Peer(("yoyodyne==0.5.27",), unwanted=("torchvision",)),
    "ctranslate2": Peer(("ctranslate2==4.8.4",)),
}


def install(name: str, envs: Path) -> None:
    """Install torch first, then the toolkit with it, so that no CUDA package is pulled."""
    peer = PEERS[name]
    folder = envs / name
    venv.create(folder, with_pip=True, clear=True)
    constraints = envs / "constraints.txt"
    constraints.write_text(f"{TORCH}\n")
    pip = [str(folder / "bin" / "python"), "-m", "pip"]
    limits = ["--quiet", "--constraint", str(constraints)]
    subprocess.run([*pip, "install", *limits, TORCH, "setuptools<81", "wheel"], check=True)
    subprocess.run([*pip, "install", *limits, *peer.wanted], check=True)
    if peer.unwanted:
        subprocess.run([*pip, "uninstall", "--quiet", "--yes", *peer.unwanted], check=True)


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
