"""Facts about training in several processes, for `regard doctor --distributed`."""

import os
import socket
from datetime import timedelta
from typing import Final

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

from regard.messages import message

#: variables by which torchrun tells a process its place
VARIABLES: Final = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS",
)
#: processes of the test, and seconds until it counts as failed
TESTED: Final = 2
LIMIT: Final = 120


def distributed_report() -> list[tuple[str, str]]:
    """Return devices, backends, torchrun's variables and the result of a test, by name."""
    gpus = torch.cuda.device_count()
    found = {name: os.environ[name] for name in VARIABLES if name in os.environ}
    said = message("check.comma").join(f"{name}={value}" for name, value in found.items())
    several = "one-gpu" if gpus == 1 else "gpus"
    rows = [
        (message("doctor.devices"), message(f"doctor.{several}", gpus=gpus, cores=os.cpu_count())),
        (message("doctor.backends"), _backends()),
        ("torchrun", said or message("doctor.one-process")),
        (message("doctor.processes", backend="gloo", count=TESTED), all_reduce_test("gloo")),
    ]
    if dist.is_nccl_available() and gpus >= TESTED:
        title = message("doctor.processes", backend="nccl", count=TESTED)
        rows.append((title, all_reduce_test("nccl")))
    return rows


def _backends() -> str:
    """Return the backends that torch has, with the version of NCCL."""
    names = ["gloo"] if dist.is_gloo_available() else []
    if dist.is_nccl_available() and torch.cuda.is_available():
        numbers: tuple[int, ...] = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
        names.append(f"nccl {'.'.join(map(str, numbers))}")
    return message("check.comma").join(names) or message("doctor.none")


def all_reduce_test(backend: str) -> str:
    """Start two processes that sum a number of each; return whether that works, or why not."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    try:
        spawn(_sum_ranks, (backend, address), nprocs=TESTED)  # type: ignore[no-untyped-call]
    except Exception as error:  # which has the traceback of a process as its text
        reason = str(error).strip().splitlines()[-1].partition(": ")[2]
        return message("doctor.fails", reason=reason or str(error))
    return message("doctor.works")


def _sum_ranks(rank: int, backend: str, address: str) -> None:
    """Take part in a sum; raises if it fails."""
    for name in (*VARIABLES, "TORCHELASTIC_USE_AGENT_STORE"):  # torchrun's own are no part of it
        os.environ.pop(name, None)
    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    limit = timedelta(seconds=LIMIT)
    dist.init_process_group(
        backend, init_method=address, rank=rank, world_size=TESTED, timeout=limit
    )
    number = torch.tensor(float(rank + 1), device=device)
    dist.all_reduce(number)
    dist.destroy_process_group()
    if number.item() != TESTED * (TESTED + 1) / 2:
        raise RuntimeError(f"the sum is {number.item():g}")
