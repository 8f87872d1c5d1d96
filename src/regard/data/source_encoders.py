"""Encoders of sources: tokenisers of text, scalers of frames, patches of pictures, and others."""

from regard.data.frame_scaler import FrameScaler
from regard.data.pictures import PictureEncoder
from regard.data.series_windows import SeriesScaler
from regard.data.sounds import SoundEncoder
from regard.data.story_encoder import StoryEncoder
from regard.data.tokenizers import Tokenizer
from regard.errors import RegardError

#: what a run knows of its sources: how text or a picture is cut, or how numbers are scaled
SourceEncoder = (
    Tokenizer | FrameScaler | SoundEncoder | PictureEncoder | SeriesScaler | StoryEncoder
)


def require_tokenizer(side: SourceEncoder, what: str) -> Tokenizer:
    """Return the tokeniser of text sources; raises RegardError for frames.

    Args:
        side: the source encoder of a run.
        what: what needs text sources, worded to go before "must".
    """
    if isinstance(side, Tokenizer):
        return side
    raise RegardError(
        f"{what} must have a source of text, but this run reads {side.summary}: use `regard "
        f"predict`, `regard evaluate`, `regard show` or `regard check` with it."
    )
