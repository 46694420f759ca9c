"""Channels of a network that is made wider or narrower."""


def times(channels: int, width: float) -> int:
    """`channels` at this width. Raises ValueError where that is no whole number from 1 on."""
    wide = channels * width
    if not wide >= 1 or wide != int(wide):
        raise ValueError(f"width is {width}, which makes {wide:g} channels of {channels}")
    return int(wide)
