"""The device: OpenBLAS comes before MLX, and each kind of device gets the dtypes it is fast with."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys

import mlx.core as mx
import numpy as np
import pytest

from satchel.engine import device
from satchel.engine.device import (
    BLAS_LIBRARIES,
    Device,
    activation_dtype,
    cache_dtype,
    current_device,
    preload_blas,
    should_dequantise,
)
from satchel.engine.turboquant import quantize, scale_and_bias

GIB = 1 << 30
CPU = Device("cpu", None, 16 * GIB)
METAL = Device("metal", None, 16 * GIB)


def run_python(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()


def has_openblas() -> bool:
    try:
        ctypes.CDLL(BLAS_LIBRARIES[0])
    except OSError:
        return False
    return sys.platform.startswith("linux")


def test_importing_the_engine_does_not_import_mlx() -> None:
    code = "import sys, satchel.engine, satchel.engine.device; print('mlx.core' in sys.modules)"
    assert run_python(code) == "False"


@pytest.mark.skipif(not has_openblas(), reason="OpenBLAS is not installed")
def test_mlx_multiplies_with_openblas() -> None:
    # The dynamic linker's own trace says which library MLX's cblas_sgemm was bound to.
    code = "import satchel.engine, mlx.core as mx; mx.eval(mx.ones((64, 64)) @ mx.ones((64, 64)))"
    env = {"LD_DEBUG": "bindings", "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    bound = [line for line in done.stderr.splitlines() if "`cblas_sgemm'" in line and "libmlx" in line]
    assert bound
    assert all("openblas" in line.split(" to ")[1] for line in bound)


@pytest.mark.skipif(not has_openblas(), reason="OpenBLAS is not installed")
def test_preloading_says_which_library_and_does_it_once() -> None:
    code = "from satchel.engine.device import preload_blas as p; import mlx.core; print(p(), p())"
    assert run_python(code) == "libopenblas.so.0 libopenblas.so.0"


def test_preloading_after_mlx_is_too_late_and_says_so() -> None:
    code = "import mlx.core; from satchel.engine.device import preload_blas; print(preload_blas())"
    assert run_python(code) == "None"


def test_a_cpu_computes_in_float32_and_metal_in_the_models_own_dtype() -> None:
    assert activation_dtype(CPU, mx.bfloat16) == mx.float32
    assert activation_dtype(METAL, mx.bfloat16) == mx.bfloat16
    assert activation_dtype(METAL, mx.float16) == mx.float16


def test_exact_kv_is_held_in_16_bits() -> None:
    assert cache_dtype(mx.bfloat16) == mx.bfloat16
    assert cache_dtype(mx.float16) == mx.float16
    assert cache_dtype(mx.float32) == mx.float16


def test_weights_are_dequantised_on_a_cpu_when_they_fit_in_half_of_the_memory() -> None:
    assert should_dequantise(CPU, 8 * GIB)
    assert not should_dequantise(CPU, 8 * GIB + 1)
    assert not should_dequantise(METAL, 1)


def test_advice_is_given_only_where_it_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    (line,) = CPU.advice()
    assert "openblas" in line.lower()
    assert Device("cpu", "libopenblas.so.0", GIB).advice() == []
    assert METAL.advice() == []
    monkeypatch.setattr(sys, "platform", "darwin")
    assert CPU.advice() == []


def test_the_current_device_is_what_mlx_uses() -> None:
    device = current_device()
    assert (device.kind == "cpu") == (mx.default_device() == mx.Device(mx.cpu))
    assert device.blas == preload_blas()
    assert device.memory_bytes > GIB


def test_fused_functions_are_compiled_on_a_gpu_and_compute_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Compiling for a CPU takes a C++ compiler; on this machine it stands for what a GPU would run."""
    if not shutil.which("g++"):
        pytest.skip("MLX compiles for a CPU with g++, which is not here")
    x = mx.array(np.random.default_rng(0).standard_normal((5, 64)).astype(np.float32))
    grids = {bits: quantize(x, bits, 64)[1] for bits in (2, 4)}
    plain = {bits: scale_and_bias(grid, bits) for bits, grid in grids.items()}
    compiled: list[object] = []
    compile_ = mx.compile
    monkeypatch.setattr(mx, "compile", lambda f, **options: compiled.append(f) or compile_(f, **options))
    monkeypatch.setattr(device, "current_device", lambda: Device("metal", None, 1 << 30))
    device._compiled.cache_clear()
    for tokens in (5, 3):  # one compilation serves all lengths
        for bits, grid in grids.items():
            for ours, theirs in zip(scale_and_bias(grid[:tokens], bits), plain[bits], strict=True):
                assert mx.array_equal(ours, theirs[:tokens])
    assert len(compiled) == 1
    device._compiled.cache_clear()
