"""Makes and opens the sessions of one loaded model in one store. Knows nothing of turns."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import cached_property

from satchel.cache_store.local import LocalStore
from satchel.cache_store.maintenance import delete_unused, prune
from satchel.cache_store.manifest import Message
from satchel.cache_store.sessions import Saved, open_session
from satchel.cache_store.uses import session_uses
from satchel.config.profiles import Profile, get_profile
from satchel.config.settings import Settings
from satchel.config.units import size_text
from satchel.engine.archive import archive_profile
from satchel.engine.calibration import Calibration
from satchel.engine.kv_state import KVState
from satchel.engine.model import LoadedModel
from satchel.engine.model_names import EMBEDDED
from satchel.engine.sampling import SMALL_MODEL, recommended
from satchel.errors import DamagedError, UsageError
from satchel.session.session import Session

MAX_NAMED = 3  # sessions in one line
IDENTITY_FORMAT = 2  # of what the parts of a state hold beside their codes


@dataclass(frozen=True, slots=True)
class Archived:
    """The session's KV profile now, its stored bytes, and a line where it is not the profile asked for.

    `freed_bytes` were deleted of the state of before and what went with it; `after_bytes` came in its place.
    """

    profile: str
    before_bytes: int
    after_bytes: int
    freed_bytes: int
    notice: str | None


class SessionManager:
    """Makes and opens sessions of one loaded model in one store."""

    def __init__(self, store: LocalStore, model: LoadedModel, profile: Profile, settings: Settings) -> None:
        self.store, self.model, self.settings = store, model, settings
        self.calibration = Calibration(model)
        self.factory = self.calibration.factory
        self._asked = profile
        self.written_bytes = math.inf  # by saves, since the store's size was looked at
        base = SMALL_MODEL if model.name == EMBEDDED else recommended(model.path)
        self.sampling = base.with_choices(settings.temperature, settings.top_p, settings.seed)
        self.sampler, self.logits_processors = self.sampling.sampler(), self.sampling.logits_processors()

    @cached_property
    def _chosen(self) -> tuple[Profile, str | None]:
        return self.calibration.choose(self._asked)

    @cached_property
    def profile(self) -> Profile:
        """The profile of new sessions: the one asked for, or a safer one. Found when first needed."""
        return self._chosen[0]

    def new(self) -> Session:
        """An empty session, unsaved and unnamed."""
        session = Session(self, self.profile)
        session.notices += self._safer_profile()
        if self.settings.system_prompt:
            session.messages.append(Message(role="system", content=self.settings.system_prompt))
        return session

    def open(self, name: str | None, profile: Profile | None = None) -> Session:
        """The stored session called `name` (a name or an id's start; None is the latest), with its KV state.

        Args:
            profile: a KV profile to go on with in place of the stored one.

        Raises:
            NotFoundError: no such session.
            DamagedError: its transcript is damaged, and none from before is kept.
        """
        saved = open_session(self.store, name)
        session = Session(self, self._profile_of(saved, profile), saved)
        if profile is not None and session.profile.asked == profile.asked:
            session.notices += self._safer_profile()
        session.notices += [note for note in (saved.notice, saved.manifest.archive_note) if note]
        session.load_state()
        self.store.touch(saved.head.session_id)
        return session

    def _profile_of(self, saved: Saved, chosen: Profile | None) -> Profile:
        """The profile to go on with: the stored one, or the `chosen` one where that is another."""
        try:
            stored = get_profile(saved.manifest.profile_name)
        except UsageError:  # a later version's; its state is then foreign, and its words are read again
            return chosen or self.profile
        # The stored name says which layers have more bits; this machine might have chosen others.
        same = chosen is not None and chosen.asked == stored.asked and not self._asked.raised
        return stored if chosen is None or same else chosen

    def _safer_profile(self) -> list[str]:
        """A line where `profile` is not the one asked for."""
        return [self._chosen[1]] if self._chosen[1] else []

    def archive(self, name: str | None, profile: Profile) -> Archived:
        """Encode a stored session's KV state to fewer bits.

        Lossy: the state as it was is deleted. Options that `profile` does not name stay as they are stored.

        Raises:
            NotFoundError: no such session.
            DamagedError: its state is missing, damaged or another model's.
            UsageError: `profile` would not make it smaller, or keeps other tokens exactly.
            HeadMovedError: another process has saved or removed it in the meantime.
            SatchelError: the disk refused. Whatever is raised, the session is as it was.
        """
        saved = open_session(self.store, name)
        if saved.notice:
            hint = f"`satchel resume {saved.head.session_id}` goes on from the save before"
            raise DamagedError(f"the last save of {saved.head.name!r} is damaged", hint)
        try:
            stored = get_profile(saved.manifest.profile_name)
        except UsageError as err:
            raise DamagedError(f"{saved.head.name!r} has a profile that this version does not know") from err
        chosen, notice = self.calibration.choose(archive_profile(stored, profile))
        used = session_uses(self.store, saved.head.session_id)
        try:
            session = Session(self, stored, saved)
            archived = session.archive(chosen)
        except UsageError as err:
            if notice is None:
                raise
            raise UsageError(f"{notice}; {err}", err.hint) from err
        before, after = saved.head.stored_bytes, archived.head.stored_bytes
        freed = delete_unused(self.store, used) if used else 0
        return Archived(session.profile.asked, before, after, freed, notice)

    def limit_store(self, session: Session) -> str | None:
        """Bring the store below the size that the settings give, at the cost of other sessions' state.

        Looks at the store after the first save, and whenever a hundredth of the limit has been written since.

        Args:
            session: the one that was saved, which keeps its state.

        Returns:
            A line for the user, if any session lost its state, or if the store is still too large.

        Raises:
            SatchelError: others hold the lock, or the disk refused. No words are lost.
        """
        limit = self.settings.max_store_bytes
        if limit is None or self.written_bytes < limit / 100:
            return None
        self.written_bytes = 0
        pruned = prune(self.store, limit, keep=session.id)
        above = f"the store was above {self.settings.max_store_size}"
        still = f"; it still takes {size_text(pruned.after_bytes)}" if pruned.after_bytes > limit else ""
        if not pruned.sessions:
            return f"{above}{still}" if still else None
        names = ", ".join(repr(each.name) for each in pruned.sessions[:MAX_NAMED])
        more = f" and {len(pruned.sessions) - MAX_NAMED} more" if len(pruned.sessions) > MAX_NAMED else ""
        return f"{above}: of {names}{more} only the words are kept{still}"

    def identity(self, state: KVState) -> dict[str, object]:
        """All that must be equal for stored KV to be this model's own: one differing field is a miss."""
        model = self.model
        return {
            "format": IDENTITY_FORMAT,
            "model": asdict(model.fingerprint),
            "activations": str(model.dtype),
            "kv": state.identity(),
        }
