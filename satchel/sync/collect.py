"""Making a remote smaller: deleting what no session in it needs. Knows nothing of this machine's store.

Nothing younger than a grace period is deleted, by the remote's own clock: another machine may be sending it,
and names it last. Whoever relies on an object that was there already looks again once it is named.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from satchel.errors import NotFoundError
from satchel.remotes.probe import PREFIX as PROBE_PREFIX
from satchel.remotes.remote import Listed, Remote
from satchel.remotes.s3 import MAX_LINK_S
from satchel.sync.entries import BLOCKS, HEADS, MANIFESTS, Entry
from satchel.sync.keys import Keys
from satchel.sync.ledger import FAULTS, Ledger
from satchel.sync.parallel import in_parallel
from satchel.sync.transfer import RemoteObjects

GRACE_S = 24 * 3600.0  # and the least for users: who sends relies on what is younger than half of it

SHARES = "v1/shares/"

_KINDS = {
    BLOCKS: "blocks",
    MANIFESTS: "manifests",
    HEADS: "entries",
    SHARES: "shares",
    PROBE_PREFIX: "probes",
}


@dataclass(frozen=True, slots=True)
class RemoteCollected:
    """Objects deleted, or that would be, by kind, and their bytes.

    Attributes:
        entries: superseded ones.
        shares: those to which no link holds any more.
        probes: left over of setting up.
        uploads: begun and never finished; a dry run does not count them.
        younger_bytes: of what no session needs and is too young to be deleted.
        faults: what cannot be read, which is why nothing was deleted.
    """

    blocks: int = 0
    manifests: int = 0
    entries: int = 0
    shares: int = 0
    probes: int = 0
    uploads: int = 0
    freed_bytes: int = 0
    younger_bytes: int = 0
    faults: tuple[str, ...] = ()


def collect_remote(
    remote: Remote,
    keys: Keys,
    grace_s: float = GRACE_S,
    dry_run: bool = False,
    abort_uploads: Callable[[float], int] | None = None,
) -> RemoteCollected:
    """Delete what no session in the encrypted `remote` needs.

    Nothing is deleted while an entry or a manifest that counts cannot be read: what it needs is not known.

    Args:
        abort_uploads: ends uploads that were begun so many seconds ago; returns how many.

    Raises:
        NetworkError: the remote cannot be reached; what was deleted until then is.
    """
    faults: list[str] = []
    unneeded = _unneeded(remote, keys, faults)
    if faults:
        return RemoteCollected(faults=tuple(faults))
    due = [each for each in unneeded if _is_due(each, each.age_s, grace_s)]
    young = [
        each
        for each in unneeded
        if not _is_due(each, each.age_s, grace_s) and not each.name.startswith((SHARES, HEADS))
    ]
    if not dry_run and due:
        # What came to be needed while all that was looked at.
        still = {each.name for each in _unneeded(remote, keys, faults)}
        due = [each for each in due if each.name in still and not faults]
        gone = in_parallel(partial(_delete, remote, grace_s), due)
        due = [each for each, deleted in zip(due, gone, strict=True) if deleted]
    kinds = Counter(_KINDS[each.name[: each.name.index("/", 3) + 1]] for each in due)
    done = RemoteCollected(
        **kinds,
        freed_bytes=sum(each.size for each in due),
        younger_bytes=sum(each.size for each in young),
        faults=tuple(faults),
    )
    uploads = abort_uploads(grace_s) if abort_uploads and not dry_run else 0
    return replace(done, uploads=uploads)


def _is_due(each: Listed, age_s: float | None, grace_s: float) -> bool:
    least_s = max(grace_s, MAX_LINK_S) if each.name.startswith(SHARES) else grace_s
    return age_s is not None and age_s >= least_s


def _delete(remote: Remote, grace_s: float, each: Listed) -> bool:
    """Delete an object, unless it was sent again meanwhile; whether it was."""
    now = remote.stat(each.name)
    if now is None or not _is_due(each, now.age_s, grace_s):
        return False
    remote.delete(each.name)
    return True


def _unneeded(remote: Remote, keys: Keys, faults: list[str]) -> list[Listed]:
    """The objects that no session needs; what could not be read is added to `faults`."""
    # Listed ahead of the entries: what is listed and comes to be needed meanwhile is seen as needed.
    listed = [
        each for prefix in (BLOCKS, MANIFESTS, SHARES, PROBE_PREFIX, HEADS) for each in remote.list(prefix)
    ]
    ledger = Ledger(remote, keys, {}, exclusive=True)
    faults += [err.one_line() for err in ledger.unreadable().values()]
    objects = RemoteObjects(remote, keys)
    needed: set[str] = set()

    def need(entry: Entry) -> None:
        assert entry.head is not None
        try:
            needed.update(_names(objects, entry.head.manifest))
        except FAULTS as err:
            faults.append(f"{entry.head.name}: {err.one_line()}")

    standing: list[Entry] = []
    for session_id in ledger.heads():
        try:
            newest = ledger.tips(session_id)
        except FAULTS as err:
            faults.append(err.one_line())
            continue
        # The one before stays for readers that have just listed it.
        needed.update(ledger.folder(session_id) + name for name in ledger.names(session_id)[-2:])
        for named in (newest.newest, *newest.others) if newest else ():
            needed.add(ledger.folder(session_id) + named.name)
            standing += [named.entry] if named.entry.head else []
    in_parallel(need, standing)
    return [each for each in listed if each.name not in needed]


def _names(objects: RemoteObjects, manifest_id: str) -> set[str]:
    """All that a generation needs.

    Raises:
        NotFoundError, DamagedError, VersionError: it cannot be read.
    """
    manifest, _ = objects.manifest(manifest_id)
    names = {objects.manifest_name(each) for each in (manifest_id, *manifest.abandoned)}
    names |= {objects.block_name(ref.sha256) for ref in manifest.refs}
    for each in manifest.abandoned:
        with contextlib.suppress(NotFoundError):  # its machine had lost it when it was sent
            names |= {objects.block_name(ref.sha256) for ref in objects.manifest(each)[0].blocks}
    return names
