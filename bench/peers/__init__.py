"""KV caches of other projects, for the bench of KV caches alone: Satchel itself knows none of them.

`make bench-peers` installs them into an environment of their own. A peer that is not there is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType

from satchel.engine.model import LoadedModel

from . import mlx_turboquant, mlx_vlm, turboquant_mlx_full, veloxquant_mlx
from .peer import Peer

__all__ = ["Peer", "installed_peers"]

ADAPTERS: tuple[ModuleType, ...] = (turboquant_mlx_full, mlx_turboquant, mlx_vlm, veloxquant_mlx)

# What other people's modules raise on import, or where a name has moved, with an MLX they were not made for.
BROKEN = (ImportError, AttributeError, TypeError, ValueError, RuntimeError, OSError)


def installed_peers(model: LoadedModel, report: Callable[[str], None] = print) -> dict[str, Peer]:
    """The peers that can be imported here, made for `model`, by name.

    Args:
        model: its plain `KVCache` layers get the peer's cache; all other layers keep mlx-lm's own.
        report: called with one line for each package that is left out.
    """
    found: dict[str, Peer] = {}
    for adapter in ADAPTERS:
        try:
            version(adapter.PACKAGE)
            found |= {peer.name: peer for peer in adapter.peers(model)}
        except PackageNotFoundError:
            report(f"{adapter.PACKAGE}: not installed, left out (`make bench-peers` installs it)")
        except BROKEN as err:
            reason = " ".join(str(err).split())[:200]
            report(f"{adapter.PACKAGE}: cannot be imported, left out ({type(err).__name__}: {reason})")
    return found
