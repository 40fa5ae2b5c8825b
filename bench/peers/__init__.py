"""KV caches of other projects, for the bench of KV caches alone: Satchel itself knows none of them.

`make bench-peers` installs them into an environment of their own. A peer that is not there, or that does not
serve the model, is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType

import mlx.core as mx

from satchel.engine.model import LoadedModel

from . import mlx_turboquant, mlx_vlm, turboquant_mlx_full, veloxquant_mlx
from .peer import Peer

__all__ = ["Peer", "installed_peers"]

ADAPTERS: tuple[ModuleType, ...] = (turboquant_mlx_full, mlx_turboquant, mlx_vlm, veloxquant_mlx)

# What other people's modules raise on import, or where a name has moved, with an MLX they were not made for,
# and on sizes of heads they do not know.
BROKEN = (
    ImportError,
    AttributeError,
    TypeError,
    ValueError,
    RuntimeError,
    OSError,
    LookupError,
    ArithmeticError,
    AssertionError,
)


def installed_peers(model: LoadedModel, report: Callable[[str], None] = print) -> dict[str, Peer]:
    """The peers that can be imported here and read two tokens with `model`, by name.

    Args:
        model: its plain `KVCache` layers get the peer's cache; all other layers keep mlx-lm's own.
        report: called with one line for each package or peer that is left out.
    """
    found: dict[str, Peer] = {}
    for adapter in ADAPTERS:
        try:
            version(adapter.PACKAGE)
            peers = adapter.peers(model)
        except PackageNotFoundError:
            report(f"{adapter.PACKAGE}: not installed, left out (`make bench-peers` installs it)")
            continue
        except BROKEN as err:
            report(f"{adapter.PACKAGE}: cannot be imported, left out ({_reason(err)})")
            continue
        for peer in peers:
            try:
                _try(model, peer)
            except BROKEN as err:
                report(f"{peer.name}: fails on this model, left out ({_reason(err)})")
            else:
                found[peer.name] = peer
    return found


def _try(model: LoadedModel, peer: Peer) -> None:
    """Read two tokens, one after the other: what cannot work fails here and not after an hour."""
    with peer.attention():
        caches = peer.make()
        for _ in range(2):
            mx.eval(model.model(mx.array([[0]]), cache=caches))


def _reason(err: Exception) -> str:
    return f"{type(err).__name__}: {' '.join(str(err).split())[:200]}"
