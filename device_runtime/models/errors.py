"""The errors of this package; every message is one line with the values at fault."""


class ModelError(Exception):
    """Base of all errors here. The command line prints it as one line and exits with 2."""


class TensorError(ModelError):
    """Raised when tensors are malformed or are not the ones expected."""


class BundleError(ModelError):
    """Raised when a bundle is missing, damaged, of another format, or inconsistent."""


class EngineError(ModelError):
    """Raised when an engine is missing, refuses a graph, or gets wrong arrays."""


class GpuOutOfMemory(EngineError):
    """Raised when the memory of a GPU does not suffice."""


class ExportError(ModelError):
    """Raised when a module cannot be turned into a bundle."""


class DataError(ModelError):
    """Raised when local data is missing, unreadable, or does not fit the task."""


class NoSamples(DataError):
    """Raised when there are no samples, as in an empty folder; some may come."""


class ParityError(ModelError):
    """Raised when an exported graph does not compute what torch computes."""


def one_line(error: BaseException, limit: int = 300) -> str:
    """The message of another library's error, without line breaks, at most `limit` characters."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= limit else text[: limit - 3] + "..."
