"""Memory that was freed goes back to the system, where the C library would keep it."""

import os


def give_back() -> bool:
    """Returns freed heap memory to the system; False where the C library cannot (it is not glibc).

    After a bundle was read and a session made, tens of MB. Takes about a millisecond.
    """
    import ctypes  # which takes some itself

    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is None:
        return False
    trim(0)
    return True
