"""On-device training for federated learning; exports `Personal`, the model that a device keeps."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .client.personal.asking import Guess, Personal, Prediction

__all__ = ["Guess", "Personal", "Prediction"]


def __getattr__(name: str) -> Any:
    """Import the names above when they are first used, so that importing this package costs nothing."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .client.personal import asking

    return getattr(asking, name)
