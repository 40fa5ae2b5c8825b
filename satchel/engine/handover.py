"""Makes what one thread has computed usable in another. Knows nothing of what was computed, or what for."""

from __future__ import annotations

import contextlib
import gc

import mlx.core as mx


def evaluate_everything() -> None:
    """Evaluate all arrays that there are.

    MLX's streams belong to threads: an array that waits to be evaluated can be so only by the thread that
    asked for it. Arrays lie in modules, caches, closures and memoised functions; the garbage collector
    knows all of them. No other thread may compute meanwhile.
    """
    arrays = [each for each in gc.get_objects() if isinstance(each, mx.array)]
    try:
        mx.eval(arrays)
    except RuntimeError:  # some wait for another thread: they are left to it
        for array in arrays:
            with contextlib.suppress(RuntimeError):
                mx.eval(array)
