"""The error for a session whose words are stored whole and whose state is not. Knows nothing of formats."""

from __future__ import annotations

from satchel.cache_store.manifest import Manifest
from satchel.errors import DamagedError


def lost_state(manifest: Manifest, reason: str) -> DamagedError:
    hint = "resume it and say something: its words are read again, and saved with a new state"
    return DamagedError(f"{manifest.name!r} cannot be exported with its state: {reason}", hint)
