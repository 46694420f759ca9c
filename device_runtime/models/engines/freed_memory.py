"""Returns freed memory to the system, which the C library would keep."""

import gc
import os


def trim_heap() -> bool:
    """Returns freed heap memory to the system; False if the C library cannot (it is not glibc).

    That is tens of MB after a bundle was read and a session made, and takes about a millisecond.
    """
    import ctypes  # here, since it takes memory itself

    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is None:
        return False
    trim(0)
    return True


def collect_and_trim() -> None:
    """Collects garbage and returns freed memory to the system, so that a device is small between rounds.

    Only glibc would keep it (9 of 88 MB after measuring a small network).
    """
    gc.collect()
    trim_heap()
