"""Models, the compressed KV cache and generation on MLX. Knows nothing of disk formats or terminals."""

from satchel.engine.device import preload_blas

preload_blas()  # must run before the first `import mlx.core` anywhere in this package
