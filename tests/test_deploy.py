"""Launch recipes: files that can be parsed, and command lines that regard accepts."""

import os
import re
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest

from test_readme import check_options as check_command

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
SCRIPT = DEPLOY / "slurm" / "train.sbatch"
DOCKERFILE = (DEPLOY / "docker" / "Dockerfile").read_text()
JOB = yaml.safe_load((DEPLOY / "kuberay" / "predict.yaml").read_text())
COMPOSE = yaml.safe_load((DEPLOY / "docker" / "compose.yaml").read_text())


def script_commands():
    text = SCRIPT.read_text().replace("\\\n", " ")
    preset = re.search(r"PRESET=\$\{PRESET:-(\w+)\}", text)[1]
    text = text.replace('"$PRESET"', preset)
    return [shlex.split(words) for words in re.findall(r"launch regard (.+)", text)]


def regard_commands():
    """What follows `regard` in every recipe."""
    yield from script_commands()
    for line in (JOB["spec"]["entrypoint"], COMPOSE["services"]["regard"]["command"]):
        program, *words = shlex.split(line)
        assert program == "regard"
        yield words
    yield ["--help"]


@pytest.mark.parametrize("words", list(regard_commands()), ids=" ".join)
def test_commands_are_known(words):
    if words != ["--help"]:
        check_command(words)


def test_the_script_is_bash_and_has_two_commands():
    subprocess.run(["bash", "-n", str(SCRIPT)], check=True)
    assert [words[0] for words in script_commands()] == ["train", "train"]
    assert script_commands()[0][1:] == ["--resume", "$RUN"]


@pytest.fixture
def slurm(tmp_path):
    """Stand-ins for srun, torchrun and scontrol, which write down how they are called."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, body in {
        "srun": 'echo "srun $*" >> log; shift; exec "$@"',
        "torchrun": 'echo "torchrun $*" >> log; trap "exit 0" TERM; touch trapped\n'
        "sleep ${SLEEP:-0} & wait",
        "scontrol": 'echo "scontrol $*" >> log; echo node7',
    }.items():
        (tools / name).write_text(f"#!/bin/bash\n{body}\n")
        (tools / name).chmod(0o755)
    env = {"PATH": f"{tools}:{os.environ['PATH']}", "DATA": "my pairs.tsv", "RUN": "runs/a b"}
    env |= {"SLURM_JOB_NODELIST": "node[7-8]", "SLURM_NNODES": "2", "SLURM_JOB_ID": "41"}
    env["SLURM_GPUS_ON_NODE"] = "4"
    return tmp_path, env


def test_the_script_starts_and_resumes(slurm):
    folder, env = slurm
    run = ["bash", str(SCRIPT)]
    subprocess.run(run, check=True, cwd=folder, env=env, timeout=60)
    log = (folder / "log").read_text()
    assert "--nnodes=2 --nproc-per-node=4 --rdzv-backend=c10d --rdzv-endpoint=node7:29500" in log
    assert "-m regard train my pairs.tsv --preset transformer --output runs/a b" in log
    (folder / "runs" / "a b").mkdir(parents=True)
    (folder / "runs" / "a b" / "config.json").write_text("{}")
    subprocess.run(run, check=True, cwd=folder, env=env, timeout=60)
    assert (folder / "log").read_text().endswith("-m regard train --resume runs/a b\n")
    del env["DATA"]
    failed = subprocess.run(run, cwd=folder, env=env, capture_output=True, text=True, timeout=60)
    assert failed.returncode
    assert "set DATA to the pairs" in failed.stderr


def test_the_script_is_queued_again_when_its_time_is_up(slurm, default_signals):
    folder, env = slurm
    words = ["bash", str(SCRIPT)]
    with subprocess.Popen(words, cwd=folder, env={**env, "SLEEP": "20"}) as job:
        end = time.monotonic() + 30
        while not (folder / "trapped").exists():
            assert time.monotonic() < end
            time.sleep(0.05)
        job.send_signal(signal.SIGTERM)
        job.wait(15)
    assert (folder / "log").read_text().endswith("scontrol requeue 41\n")


def test_the_image_has_what_it_copies_and_a_user_without_rights():
    for words in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.MULTILINE):
        for name in words.split()[:-1]:
            assert (ROOT / name).exists(), name
    assert re.search(r"^USER regard$", DOCKERFILE, re.MULTILINE)
    assert DOCKERFILE.index("USER regard") > DOCKERFILE.rindex("RUN ")
    extras = set(re.search(r'EXTRAS="([\w,]+)"', DOCKERFILE)[1].split(","))
    extras |= set(COMPOSE["services"]["regard"]["build"]["args"]["EXTRAS"].split(","))
    project = (ROOT / "pyproject.toml").read_text()
    assert all(re.search(rf"^{name} = \[", project, re.MULTILINE) for name in extras)
