"""Errors of the mask helper. Each text is one line: what is wrong, with its values, and what to do."""

from __future__ import annotations


class MaskHelperError(Exception):
    """Base class of the errors that `mask_helper` raises."""


class SumRefused(MaskHelperError):
    """A sum that is not told; the text goes to the aggregator.

    invalid: the devices whose masks cannot be opened. used: those whose masks are in another set. Without all
    of them the sum might be told.
    """

    def __init__(self, text: str, invalid: tuple[str, ...] = (), used: tuple[str, ...] = ()) -> None:
        super().__init__(text)
        self.invalid, self.used = invalid, used


class LedgerError(MaskHelperError):
    """The ledger cannot be read or written, or is of another version."""


class MetricsError(MaskHelperError):
    """An address at which no metrics can be served."""
