import pytest

from pretrained.families import save


@pytest.fixture(scope="session")
def hugging():
    return pytest.importorskip("transformers")


@pytest.fixture(scope="session")
def saved(hugging, tmp_path_factory):
    """The folder of a family, which is written when it is asked for first."""
    root, folders = tmp_path_factory.mktemp("pretrained"), {}

    def folder(family, **options):
        key = (family, *sorted(options.items()))
        if key not in folders:
            name = "-".join(map(str, (family, *options.values())))
            folders[key] = save(hugging, root / name, family, **options)
        return folders[key]

    return folder
