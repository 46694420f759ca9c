"""Errors in the name or settings of a kind of update."""


class KindError(ValueError):
    """Raised for a kind of update that this version lacks, or settings that the kind does not take."""


class OwnCodeError(KindError):
    """Raised where a kind, term, merge rule or policy of a user's own fails; begins with its "FILE:LINE"."""


class UnsendableError(ValueError):
    """Raised for a form of update that cannot be sent as its round asks."""


class MaskError(UnsendableError):
    """Raised for a mask or a masked update that is not valid, and for a sum that cannot be opened."""


class SpoiltSum(MaskError):
    """Raised for a sum that cannot be one of its devices' updates: a device or a mask helper has lied."""
