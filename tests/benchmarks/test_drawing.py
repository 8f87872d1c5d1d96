import pytest

from benchmarks.tools import architecture


@pytest.mark.slow
def test_the_drawing_is_up_to_date():
    assert architecture.main(["--check"]) == 0
