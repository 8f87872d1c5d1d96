"""A zip of pictures or recordings is read as a folder is."""

import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

import pictures
import regard
from regard.cli import app
from regard.data import read_pairs
from regard.data.text_files import media_folder
from regard.errors import DataError


def packed(path, files):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return str(path)


def classes(folder, count=24):
    """Return pictures by path, in a folder for each of two classes."""
    rows = pictures.write_set(folder, count, "rows.tsv").read_text().splitlines()
    found = {}
    for i, line in enumerate(rows):
        content = (folder / line.split("\t")[0]).read_bytes()
        found[f"{('even', 'odd')[i % 2]}/{i}.png"] = content
    return found


@pytest.mark.long
@pytest.mark.slow
def test_a_zip_of_classes_is_trained_on_and_evaluated(tmp_path, capsys):
    files = classes(tmp_path)
    zipped = packed(
        tmp_path / "set.zip",
        {**{f"set/{name}": file for name, file in files.items()}, "__MACOSX/set/._x.png": b"x"},
    )
    for name, content in files.items():
        (tmp_path / "set" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "set" / name).write_bytes(content)
    both = [list(read_pairs(str(source))) for source in (zipped, tmp_path / "set")]
    assert [pair[:2] for pair in both[0]] == [pair[:2] for pair in both[1]]
    assert {pair.tgt for pair in both[0]} == {"even", "odd"}
    model = regard.fit(zipped, output=tmp_path / "run", steps=2, device="cpu", report=False)
    assert "its files are read as those of a folder" in capsys.readouterr().err
    assert {*model.classes_} == {"even", "odd"}
    assert model.evaluate(zipped).pairs == len(files)
    done = CliRunner().invoke(app, ["predict", str(tmp_path / "run"), zipped])
    assert len(done.stdout.splitlines()) == len(files), done.output


def test_what_leaves_the_folder_or_fills_the_disk_is_refused(tmp_path, monkeypatch):
    for name in ("../evil.png", "/evil.png", "a/../../evil.png", "C:/evil.png", "a\\..\\evil.png"):
        with pytest.raises(DataError, match="paths in a zip must stay below it"):
            media_folder(packed(tmp_path / "x.zip", {name: b"x"}))
    assert not list(tmp_path.rglob("*evil*"))
    bomb = packed(tmp_path / "y.zip", {"a/1.png": bytes(1 << 16), "b/2.png": bytes(1 << 16)})
    assert media_folder(bomb) is not None
    monkeypatch.setattr("regard.data.text_files.MAX_UNPACKED", 100_000)
    (tmp_path / "z.zip").write_bytes(Path(bomb).read_bytes())
    with pytest.raises(DataError, match="at most 100,000 bytes"):
        media_folder(tmp_path / "z.zip")
