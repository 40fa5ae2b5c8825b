"""What this machine computes on, and which dtypes suit it. Knows nothing of models' files or caches.

All that is special to Linux's CPU backend lives here: MLX's wheel links the reference BLAS, which is about
twenty times slower than OpenBLAS, and its CPU kernels emulate 16-bit floats. MLX itself is imported inside
the functions, because the BLAS must be there first.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Literal, ParamSpec, TypeVar

if TYPE_CHECKING:
    import mlx.core as mx

P = ParamSpec("P")
R = TypeVar("R")

# Only builds whose symbols carry MLX's names (`cblas_sgemm`): prefixed or 64-bit-integer builds do nothing.
BLAS_LIBRARIES = ("libopenblas.so.0", "libopenblasp.so.0", "libopenblaso.so.0", "libopenblas.so")


@dataclass(frozen=True, slots=True)
class Device:
    """`blas` is the library put before MLX's own, if any; `memory_bytes` is what this process may use."""

    kind: Literal["metal", "cuda", "cpu"]
    blas: str | None
    memory_bytes: int

    def advice(self) -> list[str]:
        """What would make it faster, a line each; empty when nothing is known to."""
        if self.kind != "cpu" or not sys.platform.startswith("linux") or self.blas:
            return []
        line = "prefill is about 16 to 20 times faster with OpenBLAS"
        if Path("/etc/debian_version").exists():
            return [f"{line}: apt install libopenblas0-pthread"]
        return [f"{line}: install your system's OpenBLAS package ({BLAS_LIBRARIES[0]})"]


@cache
def preload_blas() -> str | None:
    """Load OpenBLAS ahead of MLX's reference BLAS, once; its name, or None where there is none or no need.

    Works on Linux only, and only before the first import of `mlx.core`: symbols bound already stay bound.
    """
    if not sys.platform.startswith("linux") or "mlx.core" in sys.modules:
        return None
    for name in BLAS_LIBRARIES:
        try:
            library = ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
        except OSError:  # not installed under this name
            continue
        if hasattr(library, "cblas_sgemm"):
            return name
    return None


@cache
def current_device() -> Device:
    """The device MLX computes on by default."""
    blas = preload_blas()
    import mlx.core as mx

    if mx.default_device() != mx.Device(mx.gpu):
        return Device("cpu", blas, _system_memory_bytes())
    kind: Literal["metal", "cuda"] = "metal" if mx.metal.is_available() else "cuda"
    memory = mx.device_info().get("memory_size", _system_memory_bytes())
    return Device(kind, blas, int(memory))


def activation_dtype(device: Device, model_dtype: mx.Dtype) -> mx.Dtype:
    """The dtype to compute in: float32 on a CPU, which emulates 16-bit floats; else the model's own."""
    import mlx.core as mx

    return mx.float32 if device.kind == "cpu" else model_dtype


def cache_dtype(activation: mx.Dtype) -> mx.Dtype:
    """The 16-bit dtype of exact KV: the activations' own, or float16 where they are float32."""
    import mlx.core as mx

    return activation if activation in (mx.bfloat16, mx.float16) else mx.float16


def should_dequantise(device: Device, dense_bytes: int) -> bool:
    """Whether dense weights of `dense_bytes` pay: on a CPU, when they fit in half of the memory."""
    return device.kind == "cpu" and dense_bytes <= device.memory_bytes // 2


def _system_memory_bytes() -> int:
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:  # no control groups, or an older layout
        return physical
    return min(physical, int(limit)) if limit.isdigit() else physical


def dense_matmul_rows(transposed: bool) -> float:
    """From how many rows of x (a KV head) on, a matmul is faster with codes that are de-quantised first.

    MLX's CPU kernel unpacks the codes again for each row, and is three times slower for `x @ codes.T` than
    for `x @ codes`: with 2,048 x 64 codes, 0.32 and 0.11 ms a row of x, where de-quantising takes 0.54 ms.
    On a GPU the packed matmul always reads fewer bytes.
    """
    if current_device().kind != "cpu":
        return float("inf")
    return 2 if transposed else 6


def fused(function: Callable[P, R]) -> Callable[P, R]:
    """`function`, elementwise on arrays of any shape, as one kernel where launching kernels costs: on a GPU.

    On a CPU the operations run one by one: MLX would call a C++ compiler, which may not be there.
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        on_cpu = current_device().kind == "cpu"
        return function(*args, **kwargs) if on_cpu else _compiled(function)(*args, **kwargs)

    return call


@cache
def _compiled(function: Callable[P, R]) -> Callable[P, R]:
    import mlx.core as mx

    return mx.compile(function, shapeless=True)


def queues_ahead(device: Device) -> bool:
    """Whether work can be queued while earlier work runs. MLX's CPU streams take a few operations at most:
    asking for the next token would wait for it."""
    return device.kind != "cpu"
