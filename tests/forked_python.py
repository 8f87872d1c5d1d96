"""A stand-in for `sys.executable` whose processes start with torch and regard imported.

A process of its own imports them once and forks for each command; `forked_python()` is the path of
a small program that hands over its arguments, environment, folder and open files, passes on
signals, and ends as the forked process does. A test that measures how Python starts, or what is
imported, needs `sys.executable`.
"""

import array
import atexit
import contextlib
import fcntl
import gc
import io
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from functools import cache
from pathlib import Path

#: what is imported before the fork. Nothing that looks at streams or at the environment.
PRELOADED = ("torch", "regard.api", "regard.training", "regard.cli")
STREAMS = (0, 1, 2)
#: files that a process inherits have lower numbers than this
MOST_FILES = 100
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


@cache
def forked_python() -> str:
    """Return the path of a program that takes `[-u] (-m MODULE | FILE) ...`, as Python does."""
    folder = Path(tempfile.mkdtemp(prefix="forked-python-"))
    at = folder / "socket"
    code = f"from forked_python import serve; serve({str(at)!r}, {os.getpid()})"
    here = str(Path(__file__).parent)
    paths = [here, *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    server = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    atexit.register(lambda: (server.kill(), server.wait()))
    assert server.stdout.readline() == b"ready\n"
    program = folder / "python"
    program.write_text(
        f"#!{sys.executable} -IS\nimport sys\nsys.path.insert(0, {here!r})\n"
        f"from forked_python import hand_over\nhand_over({str(at)!r})\n"
    )
    program.chmod(0o755)
    return str(program)


def hand_over(at: str) -> None:
    """Let the server fork a process with the arguments and streams of this one; end as it does."""
    inherited = [fd for fd in range(MOST_FILES) if _is_inherited(fd)]
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(at)
        request = [sys.argv[1:], dict(os.environ), os.getcwd(), inherited]
        message = json.dumps(request).encode()
        descriptors = array.array("i", inherited)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)] if inherited else []
        server.sendmsg([len(message).to_bytes(4, "big")], rights)
        server.sendall(message)
        pid = int.from_bytes(_receive(server, 4), "big")
        for number in PASSED_ON:
            signal.signal(number, lambda number, frame: os.kill(pid, number))
        status = int.from_bytes(_receive(server, 4), "big")
    if os.WIFSIGNALED(status):
        signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status))


def serve(at: str, parent: int) -> None:
    """Fork for every request, until the process that has started this one is gone."""
    for name in PRELOADED:
        __import__(name)
    gc.collect()
    gc.freeze()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(at)
        listener.listen()
        print("ready", flush=True)
        while os.getppid() == parent:
            while _reap():  # and not by the kernel, so that its seconds are counted as ours
                pass
            if not select.select([listener], [], [], 2)[0]:
                continue
            client, _ = listener.accept()
            if not os.fork():
                listener.close()
                _watch(client)
                return
            client.close()


def _reap() -> int:
    """Return the process id of a child that has ended, or 0."""
    with contextlib.suppress(ChildProcessError):
        return os.waitpid(-1, os.WNOHANG)[0]
    return 0


def _watch(client: socket.socket) -> None:
    """Fork the process that was asked for, and say how it ended; end it if nobody waits for it."""
    head, rights, *_ = client.recvmsg(4, socket.CMSG_SPACE(MOST_FILES * 4))
    descriptors = array.array("i")
    for _, _, data in rights:
        descriptors.frombytes(data)
    request = json.loads(_receive(client, int.from_bytes(head, "big")))
    pid = os.fork()
    if not pid:
        client.close()
        _run(*request, descriptors)
        return
    for fd in (*STREAMS, *descriptors):
        os.close(fd)
    client.sendall(pid.to_bytes(4, "big"))
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            client.sendall(status.to_bytes(4, "big"))
            os._exit(0)
        if select.select([client], [], [], 0.01)[0]:  # it says nothing, so it is gone
            os.kill(pid, signal.SIGKILL)
            os._exit(1)


def _run(words, environment, folder, numbers, descriptors) -> None:
    """Run a module or a file as Python would, with these streams."""
    import runpy

    for fd in STREAMS:
        os.close(fd)
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD, MOST_FILES) for fd in descriptors]
    for fd in descriptors:
        os.close(fd)
    for fd, given in zip(numbers, moved, strict=True):
        os.dup2(given, fd)
        os.close(given)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    opened = [_stream(fd, "rww"[fd]) if fd in numbers else None for fd in STREAMS]
    sys.stdin, sys.stdout, sys.stderr = opened
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = opened
    # nohup and scripts start processes that ignore some
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    code: object = None
    words = words[1:] if words[0] == "-u" else words
    try:
        if words[0] == "-m":
            sys.argv, sys.path[0] = ["-m", *words[2:]], folder
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv, sys.path[0] = words, str(Path(words[0]).parent)
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as end:
        code = end.code
    if isinstance(code, str):
        sys.exit(code)
    # what is done at the end of a process, but for freeing all modules, which takes half a second
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in opened[1:]:
        if stream is not None:
            stream.flush()
    os._exit(int(code or 0))


def _stream(fd: int, mode: str) -> io.TextIOWrapper:
    encoding, _, errors = os.environ.get("PYTHONIOENCODING", "utf-8").partition(":")
    errors = "backslashreplace" if fd == 2 else errors or "strict"
    raw = open(fd, f"{mode}b", closefd=False)  # noqa: SIM115
    lines = fd == 2 or raw.isatty()
    return io.TextIOWrapper(raw, encoding, errors, line_buffering=lines)


def _is_inherited(fd: int) -> bool:
    try:
        return os.get_inheritable(fd)
    except OSError:
        return False


def _receive(connection: socket.socket, count: int) -> bytes:
    parts = b""
    while len(parts) < count:
        part = connection.recv(count - len(parts))
        if not part:
            raise SystemExit("the process that forks is gone.")
        parts += part
    return parts
