"""How this process handles the memory that it frees."""

import ctypes
import os
import sys

MMAP_MAX, TRIM_THRESHOLD = -4, -1  # numbers of glibc's malloc.h


def keep_freed_memory() -> bool:
    """Let this process keep the memory that it frees, for the tensors of the next step.

    glibc, the C library of most Linux systems, returns large arrays to the system when they are
    freed; the next step asks for them again, and the system clears every page of them. On a CPU
    with TensorFlow, that took up to a third of the time of training a model with thousands of
    words, depending on the machine (`docs/speed.md`). Values do not change, and
    neither does peak memory; but between its peaks the process holds what it once had.

    Every model that is built on TensorFlow does this. To prevent it, set one of the environment
    variables that configure the allocator, such as `MALLOC_TRIM_THRESHOLD_=131072`.

    Returns:
        bool. False where nothing was changed: on other systems, and where an environment
        variable that begins with MALLOC_ sets up the allocator.

    Example:

    >>> import dualnet
    >>> done = dualnet.keep_freed_memory()
    """
    is_set_up = any(name.startswith("MALLOC_") for name in os.environ)
    if is_set_up or not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # of another C library
        return False
    # No array is mapped on its own, and the heap is never cut back.
    return bool(mallopt(MMAP_MAX, 0) and mallopt(TRIM_THRESHOLD, -1))
