"""How errors in data write the settings of a run that mend them."""

from typing import Final

from regard.data.advice import Advice, with_commas

#: settings as they can be typed in a shell and in Python alike
SETTINGS: Final = Advice(
    tgt="tgt",
    targets='name the second of two parallel files with tgt="FILE"',
    columns=lambda columns: f'columns="{with_commas(columns)}"',
    skip="skip_bad=True",
    features="features=True",
    longer="raise max_chars",
    vectors="have it read by src_tokenizer=vectors",
)
DEV_SETTINGS: Final = SETTINGS._replace(
    tgt="dev_tgt", targets='name the second of two parallel files with dev_tgt="FILE"'
)
