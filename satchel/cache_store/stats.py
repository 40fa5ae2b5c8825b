"""How much is in a store, and of whom. Changes nothing and takes no lock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from satchel.cache_store.local import LocalStore
from satchel.cache_store.stored_files import stored_files
from satchel.cache_store.uses import SessionUses, StoreUses


@dataclass(frozen=True, slots=True)
class ModelStats:
    """Sessions of one model, the tokens of their contexts, and the bytes of all that they use."""

    sessions: int
    tokens: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Stats:
    """What is in a store, by the sizes of its files.

    Attributes:
        place: the store's directory.
        sessions: those that can be read; the others are in `faults`, a line each.
        blocks: those that sessions use, each once.
        bytes: of blocks, tails, manifests and leftovers, whoever uses them.
        shared_bytes: what sessions would take more if none shared a block.
        unreferenced_bytes: what no session uses; None if that is not known, as some cannot be read.
        index_bytes: of the index.
        models: by name. What sessions of two models share counts for both.
    """

    place: str
    sessions: int
    blocks: int
    bytes: int
    shared_bytes: int
    unreferenced_bytes: int | None
    index_bytes: int
    models: Mapping[str, ModelStats]
    faults: tuple[str, ...]


def stats(store: LocalStore) -> Stats:
    """How much is in the store, and of whom.

    Raises:
        SatchelError: a directory of the store cannot be listed.
    """
    files = list(stored_files(store))
    uses = StoreUses(store)
    sizes = {file.path.name: file.size for file in files}
    used = Counter(block for session in uses.sessions.values() for block in session.blocks if block in sizes)
    place = store.place
    return Stats(
        place=str(place),
        sessions=len(uses.sessions),
        blocks=len(used),
        bytes=sum(file.size for file in files),
        shared_bytes=sum((count - 1) * sizes[block] for block, count in used.items()),
        unreferenced_bytes=None
        if uses.faults
        else sum(file.size for file in files if not uses.count(file.path.name)),
        index_bytes=sum(_size(place / f"index.db{suffix}") for suffix in ("", "-wal", "-shm")),
        models=_model_stats(uses.sessions.values(), sizes),
        faults=tuple(uses.faults.values()),
    )


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0


def _model_stats(sessions: Iterable[SessionUses], sizes: Mapping[str, int]) -> dict[str, ModelStats]:
    by_model: dict[str, list[SessionUses]] = {}
    for session in sessions:
        by_model.setdefault(session.head.model_name, []).append(session)
    return {
        model: ModelStats(
            sessions=len(group),
            tokens=sum(session.head.token_count for session in group),
            bytes=sum(sizes.get(each, 0) for each in set().union(*(session.ids for session in group))),
        )
        for model, group in sorted(by_model.items())
    }
