"""Measures KV caches: what they cost in quality, bits and time. Knows nothing of sessions or terminals."""

from satchel.engine.device import preload_blas

preload_blas()  # must run before the first `import mlx.core` anywhere in this package
