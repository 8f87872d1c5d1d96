import pytest

from pretrained import media
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


@pytest.fixture(scope="session")
def media_files(tmp_path_factory):
    """A folder with a picture and a recording."""
    folder = tmp_path_factory.mktemp("files")
    pytest.importorskip("PIL.Image").fromarray(media.picture()).save(folder / "p.png")
    pytest.importorskip("soundfile").write(folder / "s.wav", media.sweep(), media.RATE)
    return folder
