import re

import pytest

from regard.errors import ArgumentError


def refuses(name, rule, value):
    """Expects an error that names the argument, the rule and the value."""
    parts = (re.escape(part) for part in (name, rule, value))
    return pytest.raises(
        ArgumentError, match="^{} must .*{}.*, but it is .*{}.*: .+\\.$".format(*parts)
    )
