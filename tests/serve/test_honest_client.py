"""An honest client beside others that mean harm: its p95 stays within three times the quiet one.

The server is a process of its own, and each client has an address of its own.
"""

import base64
import io
import json
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image

from pictures import drawn, png_bytes
from serve.test_attacks import request_of
from serve.test_files import picture_run
from serve.test_sounds import sound_run
from sounds import RATE, tones

pytestmark = [pytest.mark.long, pytest.mark.plain]

REQUESTS = 60
ATTACKERS = 4
#: megabytes that a server may have held at most
MOST = 1500


@contextmanager
def server_of(folder, tmp_path):
    """Start `regard serve`; yields its port and its process."""
    said = tmp_path / "said.txt"
    command = [sys.executable, "-m", "regard", "serve", str(folder), "--port", "0"]
    with open(said, "wb") as file:
        process = subprocess.Popen([*command, "--device", "cpu"], stderr=file)
    try:
        while " at http" not in said.read_text():
            assert process.poll() is None, said.read_text()
            time.sleep(0.05)
        yield int(said.read_text().split(" at http://127.0.0.1:")[1].split()[0]), process
    finally:
        process.terminate()
        process.wait(60)


def ask(port, content, address):
    """Send a whole request from an address; returns the status and the seconds."""
    start = time.perf_counter()
    source = (f"127.0.0.{address}", 0)
    found = b""
    try:
        with socket.create_connection(("127.0.0.1", port), 60, source) as connection:
            connection.sendall(content.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
            while part := connection.recv(1 << 16):
                found += part
    except OSError:
        pass
    return int(found.split()[1]) if found else 0, time.perf_counter() - start


def latencies(port, honest):
    found = [ask(port, honest, 3) for _ in range(REQUESTS)]
    assert {status for status, _ in found} == {200}
    return np.array([seconds for _, seconds in found])


@contextmanager
def attacked(port, content):
    """Repeat a request from several addresses, each as soon as it is answered."""
    over = threading.Event()

    def attack(address):
        while not over.is_set():
            ask(port, content, address)

    threads = [threading.Thread(target=attack, args=(10 + i,)) for i in range(ATTACKERS)]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join(120)


def most_megabytes(process):
    (line,) = (
        line
        for line in Path(f"/proc/{process.pid}/status").read_text().splitlines()
        if line.startswith("VmHWM")
    )
    return int(line.split()[1]) / 1024


def sent(content, path="/api/run"):
    return request_of(path, {"file": base64.b64encode(content).decode()})


def recording(samples, rate):
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format="WAV", subtype="PCM_U8")
    return file.getvalue()


def wide_picture():
    file = io.BytesIO()
    Image.new("L", (1 << 24, 1)).save(file, "PNG")
    return file.getvalue()


def encapsulated():
    file = io.BytesIO()
    Image.fromarray(drawn("red", "left")).save(file, "EPS")
    return file.getvalue()


def of_pictures(tmp_path):
    return picture_run(tmp_path / "viewer"), sent(png_bytes(drawn("red", "left")))


def of_sounds(tmp_path):
    ((samples, _),) = tones(1, seed=6)
    return sound_run(tmp_path / "speech"), sent(recording(samples, RATE))


def of_words(_):
    return "g2p", request_of("/api/run", {"text": "hello"})


CHANGES = {"text": "a" * 64, "replace": [{"token": i, "text": "a" * 600} for i in range(60)]}
HALF = 1 << 22
ATTACKS = {
    "a rate of ten million": (of_sounds, lambda: sent(recording(np.zeros(210_000), 10_000_019))),
    "a rate of three million": (of_sounds, lambda: sent(recording(np.zeros(70_000), 3_000_017))),
    "a picture of one row": (of_pictures, wide_picture),
    "a picture that is a program": (of_pictures, encapsulated),
    "a change of 36,000 tokens": (of_words, lambda: request_of("/api/what-if", CHANGES)),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_an_honest_client_is_answered_nearly_as_fast(name, tmp_path):
    model, make = ATTACKS[name]
    folder, honest = model(tmp_path)
    content = make()
    content = content if content.startswith(b"POST") else sent(content)
    with server_of(folder, tmp_path) as (port, process):
        latencies(port, honest)  # kernels are compiled, and memory is had
        quiet = np.quantile(latencies(port, honest), 0.95)
        with attacked(port, content):
            busy = np.quantile(latencies(port, honest), 0.95)
        print(json.dumps({"attack": name, "quiet": quiet, "busy": busy, "ratio": busy / quiet}))
        assert busy < 3 * quiet
        assert most_megabytes(process) < MOST


def test_half_sent_bodies_leave_an_honest_client_alone(tmp_path):
    folder, honest = of_words(tmp_path)
    head = f"POST /api/run HTTP/1.1\r\nHost: localhost\r\nContent-Length: {HALF + 1}\r\n\r\n"
    with server_of(folder, tmp_path) as (port, process), ExitStack() as stack:
        latencies(port, honest)
        quiet = np.quantile(latencies(port, honest), 0.95)
        for i in range(250):
            source = (f"127.0.0.{10 + i % 200}", 0)
            held = stack.enter_context(socket.create_connection(("127.0.0.1", port), 60, source))
            with suppress(OSError):
                held.sendall(head.encode() + b"a" * HALF)
        busy = np.quantile(latencies(port, honest), 0.95)
        print(json.dumps({"attack": "half bodies", "quiet": quiet, "busy": busy}))
        assert busy < 3 * quiet
        assert most_megabytes(process) < MOST
