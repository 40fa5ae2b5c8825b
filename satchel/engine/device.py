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


UNPACKING_STARTS_NS = 60_000  # what a dozen more operations cost


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """Matrices (B, heads, rows, dim) in the layout of `mx.quantize`: each number is code * scale + bias.

    codes (B, heads, rows, dim * bits / 32) uint32; scale, bias (B, heads, rows, dim / group_size) float32.
    """

    codes: mx.array
    scale: mx.array
    bias: mx.array
    bits: int
    group_size: int

    def matmul(self, x: mx.array, *, transpose: bool) -> mx.array:
        """`x @ self`, or `x @ self.T` with `transpose`, for x (B, heads, N, ...) float32.

        On a GPU the packed kernel reads the fewest bytes. MLX's CPU kernel unpacks the codes again for each
        row of x, in scalar code: from a few rows on, unpacking them once and multiplying by BLAS is faster.
        Codes that lie whole in a byte are multiplied as they are; scale and bias are left to the products.
        """
        if current_device().kind != "cpu" or not self._unpacking_pays(x.shape[2], transpose):
            return self._packed(x, transpose)
        if 8 % self.bits:
            dense = self._dense()
            return x @ (dense.swapaxes(-1, -2) if transpose else dense)
        return self._scores(x) if transpose else self._mix(x)

    def _unpacking_pays(self, rows: int, transpose: bool) -> bool:
        """By what was measured here, in ns a number: MLX's kernel for each row of x, and unpacking once."""
        if 8 % self.bits:
            packed, unpacked = (0.9 if transpose else 1.4), 6.1
        else:
            packed, unpacked = (0.8 if transpose else 0.25), 0.2 + 0.3 * self.scale.shape[-1]
        numbers = self.codes.size * 32 // self.bits
        return numbers * (rows * packed - unpacked) > UNPACKING_STARTS_NS

    def _packed(self, x: mx.array, transpose: bool) -> mx.array:
        import mlx.core as mx

        return mx.quantized_matmul(
            x, self.codes, self.scale, self.bias, transpose, self.group_size, self.bits
        )

    def _dense(self) -> mx.array:
        import mlx.core as mx

        return mx.dequantize(self.codes, self.scale, self.bias, self.group_size, self.bits)

    def _planes(self) -> list[mx.array]:
        """The codes as float32; plane i holds coordinates i, i + n, i + 2 n, ... of n planes."""
        import mlx.core as mx

        whole = self.codes.view(mx.uint8)  # (B, heads, rows, dim * bits / 8)
        shifted = [whole >> shift if shift else whole for shift in range(0, 8, self.bits)]
        masked = [plane & (2**self.bits - 1) for plane in shifted[:-1]] + shifted[-1:]
        return [plane.astype(mx.float32) for plane in masked]

    def _groups(self) -> list[tuple[slice, mx.array, mx.array]]:
        """The columns of each group in a plane, and the group's scale and bias, (B, heads, rows, 1)."""
        width = self.group_size * self.bits // 8
        count = self.scale.shape[-1]
        return [
            (slice(g * width, (g + 1) * width), self.scale[..., g : g + 1], self.bias[..., g : g + 1])
            for g in range(count)
        ]

    def _scores(self, x: mx.array) -> mx.array:
        planes, total = self._planes(), None
        spread = x.reshape(*x.shape[:-1], -1, len(planes))  # (B, heads, N, dim / n, n)
        for columns, scale, bias in self._groups():
            parts = [
                spread[..., columns, i] @ plane[..., columns].swapaxes(-1, -2)
                for i, plane in enumerate(planes)
            ]
            offset = spread[..., columns, :].sum((-1, -2))[..., None]  # (B, heads, N, 1)
            score = sum(parts[1:], parts[0]) * scale.swapaxes(-1, -2) + offset * bias.swapaxes(-1, -2)
            total = score if total is None else total + score
        assert total is not None
        return total

    def _mix(self, x: mx.array) -> mx.array:
        import mlx.core as mx

        planes, mixed = self._planes(), []
        for columns, scale, bias in self._groups():
            scaled = x * scale.swapaxes(-1, -2)
            parts = mx.stack([scaled @ plane[..., columns] for plane in planes], axis=-1)
            mixed.append(parts.reshape(*x.shape[:-1], -1) + x @ bias)
        return mixed[0] if len(mixed) == 1 else mx.concatenate(mixed, axis=-1)


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
