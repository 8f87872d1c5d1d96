"""What models are called, and how one is stopped."""

import os
import shutil

import pytest

from api.bundled import card
from regard.api import bundled_models
from regard.errors import DataError, RegardError
from regard.preemption import preemptible
from regard.serve.limits import Limits
from regard.serve.served_models import BatchKey, Models, StreamedToken, WorkItem
from regard.training import RunError
from serve.conftest import client_of


def test_all_bundled_models_are_served_if_none_is_named(folders, tmp_path, monkeypatch):
    for folder, name in zip(folders, ("g2p", "abc", "xyz"), strict=True):
        shutil.copytree(folder, tmp_path / name)
    card("abc").write(tmp_path / "abc")
    monkeypatch.setattr(bundled_models, "HOME", tmp_path)
    models = Models.load((), "cpu")
    assert models.names == ["g2p", "abc", "xyz"]
    info = models.page_info(Limits())["models"]
    assert [model["name"] for model in info] == models.names
    with client_of(models) as client:
        for model in ("xyz", "abc"):
            assert client.post("/api/run", json={"text": "abc", "model": model}).status_code == 200


class StopError(Exception):
    """Ends work at a preemption point."""


def test_files_of_a_run_from_elsewhere_are_read_once_and_only_if_they_are_files(
    folders, tmp_path, monkeypatch
):
    run = shutil.copytree(folders[0], tmp_path / "run")
    readme = run / "README.md"
    readme.write_text('regard predict run "try this"\n')
    models = Models.load([run], device="cpu")
    said = models.info(Limits())
    readme.unlink()
    os.mkfifo(readme)
    assert models.info(Limits()) == said  # a look at the pipe would wait for ever
    with pytest.raises(DataError, match=r"README\.md: this must be a file, but it is a pipe"):
        Models.load([run], device="cpu")
    for target in ("/dev/zero", "/etc/hostname"):
        readme.unlink()
        readme.symlink_to(target)
        with pytest.raises(RunError, match=r"README\.md is a link to"):
            Models.load([run], device="cpu")


def stop_after(points):
    """A callback that stops the work at its n-th preemption point; what it has seen."""
    seen = []

    def point():
        seen.append(1)
        if len(seen) == points:
            raise StopError

    return point, seen


def test_decoding_stops_before_its_next_step(models):
    model = models.by_name["looking"]
    point, seen = stop_after(4)
    with pytest.raises(StopError), preemptible(point):
        model.traces(["abcdefgh"], beam=1)
    assert len(seen) == 4
    point, seen = stop_after(40)
    with pytest.raises(StopError), preemptible(point):
        model.traces(["abcdefgh"], [" ".join("abcdefgh" * 9)])
    assert len(seen) == 40
    assert len(model("abcdefgh", beam=1).tokens) > 4


@pytest.mark.parametrize("points", [1, 9, 15])
def test_a_check_stops_wherever_it_is_and_leaves_the_model_as_it_was(models, points):
    model = models.by_name["tagged"]
    before = model.trace("abc", "c b a")
    hooks = [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.module.modules()]
    point, seen = stop_after(points)
    with pytest.raises(StopError), preemptible(point):
        model.check("abcdefgh", "c b a", max_len=30)
    assert len(seen) == points
    after_it = [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.module.modules()]
    assert after_it == hooks
    after = model.trace("abc", "c b a")
    assert after.maps[0].weights == pytest.approx(before.maps[0].weights, abs=1e-6)


def test_streams_that_fail_after_a_token_get_the_error_and_are_not_run_again(models, monkeypatch):
    told = []

    def stream(sources, key, on_token):
        if told or len(sources) > 2:
            raise RegardError("too many")
        on_token[0](StreamedToken("x", 0.0, None))
        raise RegardError("lost")

    monkeypatch.setattr(models.served["looking"], "stream", stream)
    key, item = BatchKey("stream", "looking"), WorkItem("a", on_token=told.append)
    with pytest.raises(RegardError, match="too many"):  # the scheduler runs its parts
        models.run_batch(key, [item] * 3)
    assert [str(error) for error in models.run_batch(key, [item] * 2)] == ["lost"] * 2
    assert [step.token for step in told] == ["x"]
