"""Errors of the mask helper. Each text is one line: what is wrong, with its values, and what to do."""

from __future__ import annotations


class MaskHelperError(Exception):
    """Base class of the errors that `mask_helper` raises."""


class SumRefused(MaskHelperError):
    """A sum that is not told; the text goes to the aggregator."""


class LedgerError(MaskHelperError):
    """The ledger cannot be read or written, or is of another version."""


class MetricsError(MaskHelperError):
    """An address at which no metrics can be served."""
