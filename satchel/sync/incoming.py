"""A session that came from the remote, put into the store beside those that are there.

Knows nothing of remotes.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Container
from dataclasses import dataclass

from satchel.cache_store.local import LocalStore, next_generation
from satchel.cache_store.maintenance import words_with_branches
from satchel.cache_store.manifest import Head, Manifest, encode_manifest
from satchel.cache_store.names import name_key
from satchel.sync.ledger import FAULTS, LostRaceError
from satchel.sync.versions import Fetched, Versions


@dataclass(frozen=True, slots=True)
class Installed:
    """What the store has now.

    Attributes:
        head: what says the same as the remote.
        here: the session's head, which is another one if its name was taken.
        renamed: the id of the session that got another name, if one did.
        notice: a line that says so.
    """

    head: Head
    here: Head
    renamed: str | None = None
    notice: str | None = None


def install(
    store: LocalStore,
    versions: Versions,
    fetched: Fetched,
    whole: bool,
    local: Head | None,
    known: Container[str],
) -> Installed:
    """Make a generation its session's current one.

    Args:
        whole: its state is in the store; else its words alone are installed.
        local: the session's head until now.
        known: ids of sessions that the remote has: of two with one name, one that is not there gets another.

    Raises:
        HeadMovedError: the session is not at `local` any more; nothing has changed.
        LostRaceError: some of its state has gone meanwhile; likewise.
        SatchelError: the disk refused.
    """
    manifest, stored = fetched.manifest, fetched.stored
    with store.locked():
        if whole:
            if not versions.is_whole(manifest):  # what no head names yet may be collected
                raise LostRaceError
            versions.put_branches(fetched)
        else:
            manifest, _ = words_with_branches(store, manifest, fetched.find)
            stored = encode_manifest(manifest)
        expected = local.manifest if local else None
        installed = _commit(store, manifest, stored, expected, known)
    # What comes was not used here.
    store.touch(manifest.session_id, min(time.time(), manifest.created_at.timestamp()))
    return installed


def _commit(
    store: LocalStore, manifest: Manifest, stored: bytes, expected: str | None, known: Container[str]
) -> Installed:
    """Needs the lock."""
    other = _other_of_name(store, manifest)
    if other is None:
        head = store.commit(manifest, expected, stored)
        return Installed(head, head)
    notice = f"two sessions are called {other.name!r}: one is {{!r}} now"
    if other.session_id not in known or other.session_id > manifest.session_id:
        renamed = None
        with contextlib.suppress(*FAULTS):  # it is damaged, and keeps its name
            renamed = store.rename(other.session_id, store.free_name(other.name))
        if renamed:
            head = store.commit(manifest, expected, stored)
            return Installed(head, head, other.session_id, notice.format(renamed.name))
    head = store.put_manifest(manifest, stored)
    here = store.commit(_renamed(manifest, store.free_name(manifest.name), head), expected)
    return Installed(head, here, manifest.session_id, notice.format(here.name))


def _renamed(manifest: Manifest, name: str, parent: Head) -> Manifest:
    return manifest.model_copy(
        update={"name": name, "generation": next_generation(manifest), "parent": parent.manifest}
    )


def _other_of_name(store: LocalStore, manifest: Manifest) -> Head | None:
    """Another session of this name."""
    store.index.refresh()
    named = store.index.named(name_key(manifest.name))
    return next((head for head in named if head.session_id != manifest.session_id), None)
