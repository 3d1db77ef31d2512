"""Memory of a process on a CPU: allocator settings and peak use."""

import ctypes
import os
import platform
import sys

MIMALLOC_DELAY = "5000"  # milliseconds that the process keeps freed memory
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # names of glibc's malloc.h
KEPT = 2**28  # bytes


def keep_freed_memory() -> bool:
    """Keep freed buffers in the process, so that the next training step reuses them. Call it before importing torch.

    Return False if the C library is not glibc: then only torch's own allocator keeps buffers. A step on a CPU frees its
    buffers and allocates the same sizes again. By default they go back to the system in between, and the kernel zeroes
    every page again: 30,000 page faults in a step of the `tiny` preset on ARM.
    torch's wheels for ARM allocate with mimalloc, which reads its delay from the environment. Other wheels on Linux
    allocate with glibc, which maps and unmaps each buffer above 32 MB unless its thresholds are raised.
    """
    os.environ.setdefault("MIMALLOC_PURGE_DELAY", MIMALLOC_DELAY)
    if platform.libc_ver()[0] != "glibc":
        return False
    library = ctypes.CDLL(None)
    return all(library.mallopt(name, KEPT) for name in (MMAP_THRESHOLD, TRIM_THRESHOLD))


def peak_memory_gb() -> float:
    """Return the peak memory of the process in GiB, or 0 on Windows, where it is not available."""
    try:
        import resource
    except ImportError:
        return 0.0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**30 if sys.platform == "darwin" else 2**20)  # bytes on macOS, else KiB
