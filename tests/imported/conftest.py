import pytest

pytest.importorskip("transformers")

from imported import zoo
from regard.training.run_folder import RunFolder, load_imported


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """The folder of a family by its name and precision, with the model that was saved there."""
    root, made = tmp_path_factory.mktemp("imported"), {}

    def folder(family, dtype=None, **sizes):
        key = (family, dtype, *sizes.items())
        if key not in made:
            path = root / str(len(made)) / family
            path.mkdir(parents=True)
            made[key] = path, zoo.save(family, path, **({"dtype": dtype} if dtype else {}), **sizes)
        return made[key]

    return folder


@pytest.fixture(scope="session")
def imported(folders):
    """A family's model of transformers, and what is imported of its folder, both in float64."""
    made = {}

    def models(family):
        if family not in made:
            path, theirs = folders(family)
            folder = RunFolder(path).imported
            made[family] = theirs, load_imported(folder), folder
        return made[family]

    return models
