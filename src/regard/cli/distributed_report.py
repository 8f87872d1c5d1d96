"""Facts about training in several processes, for `regard doctor --distributed`."""

import os
import socket
from typing import Any, Final

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

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
#: key of the message that it works
WORKS: Final = "doctor.works"


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
    context = mp.get_context("spawn")
    results: Any = context.Queue()
    started = [
        context.Process(target=_sum_ranks, args=(backend, address, rank, results), daemon=True)
        for rank in range(TESTED)
    ]
    for process in started:
        process.start()
    try:
        answers = [results.get(timeout=LIMIT) for _ in started]
    except Exception:  # of the queue: nobody has answered
        answers = [("doctor.no-answer", {"seconds": LIMIT})]
    for process in started:
        process.terminate()
        process.join()
    wrong = [message(key, **values) for key, values in answers if key != WORKS]
    return wrong[0] if wrong else message(WORKS)


def _sum_ranks(backend: str, address: str, rank: int, results: Any) -> None:
    """Take part in a sum, and report how it went: the key of a message, and its values."""
    for name in VARIABLES:  # torchrun's own processes are not part of this
        os.environ.pop(name, None)
    os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)
    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    try:
        dist.init_process_group(backend, init_method=address, rank=rank, world_size=TESTED)
        number = torch.tensor(float(rank + 1), device=device)
        dist.all_reduce(number)
        expected = TESTED * (TESTED + 1) / 2
        found = {"sum": number.item()}
        results.put((WORKS, {}) if number.item() == expected else ("doctor.wrong-sum", found))
        dist.destroy_process_group()
    except (RuntimeError, ValueError) as error:
        results.put(("doctor.fails", {"reason": str(error).splitlines()[0]}))
