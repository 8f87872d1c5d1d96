"""Parts of a run's data: records of files, manifests of shards, int8 storage, and evaluations."""

import pytest

from regard.errors import DataError
from regard.training import RunFolder, make_config
from regard.training.run_data import prepare_data
from regard.training.run_files import DataRecord


def test_changes_of_files(tmp_path):
    record = DataRecord({"data": ("a.tsv", "x"), "dev": ("-", "y")}, 0.1, {"train": "z"}, [])
    record.check({"data": "x"}, tmp_path)
    for contents, file in (({"data": "y"}, "a.tsv"), ({"data": "x", "dev": "x"}, str(tmp_path))):
        with pytest.raises(DataError) as caught:
            record.check(contents, tmp_path)
        assert caught.value.file == file
    record.write(tmp_path / "record.json")
    assert DataRecord.read(tmp_path / "record.json") == record


@pytest.mark.parametrize(("long", "said"), [(1, ""), (10, "Warning"), (20, "refused")])
def test_many_examples_that_are_too_long_are_a_warning_or_an_error(tmp_path, long, said):
    pairs = [(f"{i:03} " + "ab " * (9 if i < long else 1), "x y") for i in range(100)]
    config = make_config({"max_src_len": 12, "src_tokenizer": "char", "tgt_tokenizer": "char"})
    folder = RunFolder(tmp_path / "run")
    folder.create()
    notes = []
    if said == "refused":
        with pytest.raises(DataError, match=r"20 of 100 examples are too long.*max_src_len=3"):
            prepare_data(config, folder, pairs, notes.append)
        kept = make_config({**config.model_dump(exclude_unset=True), "max_src_len": 32})
        assert prepare_data(kept, folder, pairs, notes.append).train.dropped == 0
        return
    prepare_data(config, folder, pairs, notes.append)
    (note,) = [note for note in notes if "too long and left out" in note]
    assert note.startswith(said)
    assert ("Keep them with max_src_len=3" in note) == bool(said)
