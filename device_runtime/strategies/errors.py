"""What can be wrong with a kind of update, whoever asks for it."""


class KindError(ValueError):
    """A kind of update that this version does not have, or settings that it does not take."""
