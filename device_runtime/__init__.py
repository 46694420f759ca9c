"""On the device: measure, choose, train, report; and `Personal`, the model that it keeps for itself."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .client.personal.asking import Guess, Personal, Prediction

__all__ = ["Guess", "Personal", "Prediction"]


def __getattr__(name: str) -> Any:
    """The names above, imported when they are first asked for: importing this package costs nothing."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .client.personal import asking

    return getattr(asking, name)
