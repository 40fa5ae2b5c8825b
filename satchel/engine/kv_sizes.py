"""How many bytes a codec's rows take, by head_dim alone. Knows nothing of MLX, tokens, caches or models.

The same as the codecs' own `layout` says of the arrays they make (a test compares them), for those who plan
and must not wait for MLX to load.
"""

from __future__ import annotations

from satchel.config.profiles import GROUP_SIZES, CodecSpec

FLOAT_BYTES = 2  # of exact values, norms, scales and biases
TURBO_GROUPS = (64, 32)
POLAR_BLOCK = 16  # coordinates that share a radius


def row_bytes(spec: CodecSpec, head_dim: int) -> int:
    """Bytes of one encoded vector of `head_dim`, with its scales.

    Raises:
        ValueError: the codec cannot hold vectors of `head_dim`.
    """
    if spec.codec == "exact":
        return FLOAT_BYTES * head_dim
    if spec.codec == "turbo":
        group = min(TURBO_GROUPS, key=lambda size: -(-head_dim // size) * (size * spec.bits + 16))
        groups = -(-head_dim // group)
        return groups * (group * spec.bits // 8 + FLOAT_BYTES)
    if spec.codec == "affine":
        sizes = [size for size in GROUP_SIZES if size <= spec.group]
        group = min(sizes, key=lambda size: (-head_dim % size, -size))
        groups = -(-head_dim // group)
        return groups * (group * spec.bits // 8 + 2 * FLOAT_BYTES)
    if spec.codec == "tq-mse":
        return _packed(head_dim, spec.bits) + FLOAT_BYTES
    if spec.codec == "tq-prod":
        return _packed(head_dim, spec.bits - 1) + _packed(head_dim, 1) + 2 * FLOAT_BYTES
    if spec.codec == "qjl":
        return _packed(head_dim * spec.bits, 1) + FLOAT_BYTES
    if head_dim <= 0 or head_dim % POLAR_BLOCK:
        raise ValueError(f"head_dim is {head_dim}: polar takes multiples of {POLAR_BLOCK}")
    # Sectors and angles are packed apart, each to whole bytes.
    angles = sum(head_dim >> level for level in (2, 3, 4))
    return _packed(head_dim // 2, 4) + _packed(angles, 2) + head_dim // POLAR_BLOCK * FLOAT_BYTES


def fixed_bytes(spec: CodecSpec, head_dim: int, is_keys: bool) -> int:
    """Bytes that a head's body holds once: the mean in float32, and of keys the gains and the noise."""
    if spec.codec != "turbo":
        return 0
    return 4 * (2 * head_dim + 1) if is_keys else 4 * head_dim


def _packed(count: int, bits: int) -> int:
    return -(-count * bits // 8)
