import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

from device_runtime.machine_readings import trim_heap

MANY, SIZE = 2000, 50_000  # 100 MB in pieces that the C library keeps when they are freed


def in_glibc() -> bool:
    return sys.platform == "linux" and "libc.so.6" in Path("/proc/self/maps").read_text()


@pytest.mark.skipif(not in_glibc(), reason="only glibc can give freed memory back on request")
def test_freed_memory_goes_back_to_the_system():
    pieces = [np.ones(SIZE, np.uint8) for _ in range(MANY)]
    keep = pieces[-1]  # on top of the heap, which therefore cannot shrink by itself
    full = psutil.Process().memory_info().rss
    del pieces
    assert trim_heap()
    assert psutil.Process().memory_info().rss < full - 0.8 * MANY * SIZE
    assert keep.all()
