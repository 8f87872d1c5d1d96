import warnings

import pytest

from pretrained.families import save


@pytest.fixture(scope="session")
def hugging():
    # importing it for the first time warns of what is deprecated in its own dependencies
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = pytest.importorskip("transformers")
    found.utils.logging.set_verbosity_error()
    found.utils.logging.disable_progress_bar()
    return found


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
