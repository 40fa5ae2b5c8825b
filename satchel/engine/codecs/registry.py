"""Codecs by name. Knows nothing of tokens, caches or models."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import mlx.core as mx

from satchel.config.profiles import CodecSpec
from satchel.engine.codecs.affine import AffineCodec
from satchel.engine.codecs.base import Codec
from satchel.engine.codecs.polar import PolarCodec
from satchel.engine.codecs.qjl import QJLCodec
from satchel.engine.codecs.tq import TQMseCodec, TQProdCodec
from satchel.engine.codecs.turbo import TurboCodec

# `exact` has no codec: `body.ExactBody` holds the vectors as they are.
CODECS: dict[str, Callable[[CodecSpec, int, mx.Dtype], Codec]] = {
    "turbo": lambda spec, head_dim, dtype: TurboCodec(head_dim, spec.bits),
    "affine": lambda spec, head_dim, dtype: AffineCodec(head_dim, spec.bits, dtype, spec.group),
    "tq-mse": lambda spec, head_dim, dtype: TQMseCodec(head_dim, spec.bits, dtype),
    "tq-prod": lambda spec, head_dim, dtype: TQProdCodec(head_dim, spec.bits, dtype),
    "qjl": lambda spec, head_dim, dtype: QJLCodec(head_dim, spec.bits, dtype),
    "polar": lambda spec, head_dim, dtype: PolarCodec(head_dim, dtype),
}


@cache
def codec_for(spec: CodecSpec, head_dim: int, dtype: mx.Dtype) -> Codec:
    """The codec that `spec` names, one for all layers that are alike.

    Args:
        dtype: the 16-bit dtype of norms, scales and biases.

    Raises:
        ValueError: the codec cannot hold vectors of `head_dim`.
    """
    return CODECS[spec.codec](spec, head_dim, dtype)
