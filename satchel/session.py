"""A conversation: its transcript, the token ids the model has read, and the KV state they produced.

Joins engine and store. The transcript is the truth and the KV state a verified shortcut: where the state is
missing, foreign or damaged, the session opens all the same and is read again. Knows nothing of the terminal.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property

import numpy as np

from satchel.cache_store.local import HeadMovedError, LocalStore
from satchel.cache_store.manifest import Message
from satchel.cache_store.names import MAX_LENGTH, name_fault, validate_name
from satchel.cache_store.sessions import Saved, load_snapshot, open_session, save_snapshot
from satchel.cache_store.snapshot import BLOCK_TOKENS, Block, Snapshot, identity_differences
from satchel.config.profiles import Profile, get_profile
from satchel.config.settings import Settings
from satchel.engine.archive import archive_profile, transcode
from satchel.engine.calibration import Calibration
from satchel.engine.generate import Delta, Finished, Progress, Stats, generate
from satchel.engine.kv_state import KVState
from satchel.engine.model import EMBEDDED, LoadedModel
from satchel.engine.prompt import continue_prompt, render
from satchel.engine.sampling import SMALL_MODEL, recommended
from satchel.engine.snapshot_io import (
    NonFiniteError,
    Part,
    export_block,
    export_tail,
    restore,
    settled_tokens,
)
from satchel.errors import DamagedError, NotFoundError, SatchelError, UsageError

IDENTITY_FORMAT = 1


class ContextFullError(SatchelError):
    """The conversation does not fit into the model's context any more."""


@dataclass(frozen=True, slots=True)
class Archived:
    """The session's KV profile now, its stored bytes, and a line where it is not the profile asked for."""

    profile: str
    before_bytes: int
    after_bytes: int
    notice: str | None


class SessionManager:
    """Makes and opens sessions of one loaded model in one store."""

    def __init__(self, store: LocalStore, model: LoadedModel, profile: Profile, settings: Settings) -> None:
        self.store, self.model, self.settings = store, model, settings
        self.calibration = Calibration(model)
        self.factory = self.calibration.factory
        self._asked = profile
        base = SMALL_MODEL if model.name == EMBEDDED else recommended(model.path)
        sampling = base.with_choices(settings.temperature, settings.top_p, settings.seed)
        self.sampler, self.logits_processors = sampling.sampler(), sampling.logits_processors()

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
        try:
            return Session(self, stored, saved).archive(chosen, notice)
        except UsageError as err:
            if notice is None:
                raise
            raise UsageError(f"{notice}; {err}", err.hint) from err

    def identity(self, state: KVState) -> dict[str, object]:
        """All that must be equal for stored KV to be this model's own: one differing field is a miss."""
        model = self.model
        return {
            "format": IDENTITY_FORMAT,
            "model": asdict(model.fingerprint),
            "activations": str(model.dtype),
            "kv": state.identity(),
        }


class Session:
    """One conversation. `notices` collects lines for the user until they are taken."""

    def __init__(self, manager: SessionManager, profile: Profile, saved: Saved | None = None) -> None:
        self.manager = manager
        self.messages: list[Message] = list(saved.manifest.messages) if saved else []
        self.token_ids: list[int] = []  # what the KV state has read
        self.reused_tokens = 0  # of those, how many came from the store
        self.notices: list[str] = []
        self._saved = saved
        self._stored_tokens = 0  # leading tokens whose state is as `_saved` has it
        self._last_stats: Stats | None = None
        self._state = manager.factory.new(profile)
        self.profile = self._state.profile  # with the layers named that have more bits
        if self._state.notice:
            self.notices.append(self._state.notice)

    @property
    def id(self) -> str:
        return self._saved.head.session_id if self._saved else ""

    @property
    def name(self) -> str | None:
        return self._saved.head.name if self._saved else None

    def take_notices(self) -> list[str]:
        """The lines for the user that nobody has taken yet."""
        taken, self.notices = self.notices, []
        return taken

    # -- talking -------------------------------------------------------------------------------------

    def reply(
        self, text: str, *, max_tokens: int, cancel: threading.Event
    ) -> Iterator[Progress | Delta | Finished]:
        """Answer `text`, reading only what the KV state has not read yet.

        A turn that is closed before `Finished` leaves the transcript as it was.

        Raises:
            ContextFullError: no room is left for a question and an answer.
        """
        model, settings = self.manager.model, self.manager.settings
        messages = [*self.messages, Message(role="user", content=text)]
        prompt = self._unread(messages)
        room = model.context_length - len(self.token_ids) - len(prompt)
        if room <= 0:
            raise ContextFullError(
                f"the context is full: this message would make {model.context_length - room:,} tokens, and "
                f"the model takes {model.context_length:,}",
                "shorten it, or start a new session",
            )
        state, stored, reused = self._state, self._stored_tokens, len(self.token_ids)
        token_ids = [*self.token_ids, *prompt]
        answer: list[str] = []
        self._forget()  # what a turn has read counts only once the turn has ended
        for event in generate(
            model,
            state,
            prompt,
            max_tokens=min(max_tokens, room),
            sampler=self.manager.sampler,
            logits_processors=self.manager.logits_processors,
            cancel=cancel,
            prefill_step=settings.prefill_step,
            reused_tokens=reused,
        ):
            match event:
                case Delta(token_id, piece):
                    answer.append(piece)
                    token_ids += [] if token_id is None else [token_id]
                case Finished(_, stats, read_tokens):
                    self._state, self._stored_tokens = state, stored
                    self.token_ids = token_ids[: reused + read_tokens]
                    self._last_stats = stats
                    if answer:
                        self.messages = [*messages, Message(role="assistant", content="".join(answer))]
            yield event

    def _unread(self, messages: Sequence[Message]) -> list[int]:
        """The tokens to read next; the KV state is taken back to where the new prompt leaves the old one."""
        tokenizer = self.manager.model.tokenizer
        text = render(tokenizer, [message.model_dump() for message in messages])
        token_ids, shared = continue_prompt(tokenizer, self.token_ids, text)
        if not self._state.trim(len(self.token_ids) - shared):
            self.notices.append("this model's state cannot go back; the context is read again")
            self._forget()
            shared = 0
        del self.token_ids[shared:]
        self._stored_tokens = min(self._stored_tokens, shared)
        return token_ids[shared:]

    def _forget(self) -> None:
        """Drop the KV state: the next turn reads the transcript again."""
        self._state = self.manager.factory.new(self.profile)
        self.token_ids, self._stored_tokens = [], 0

    # -- store ---------------------------------------------------------------------------------------

    def load_state(self) -> None:
        """Load the stored KV state; on a miss say why in a notice, and leave the state empty."""
        try:
            self._restore()
        except SatchelError as err:
            self._forget()
            self.notices.append(f"{err}: the context is read again with the next message")

    def _restore(self) -> None:
        """Fill the empty KV state with the stored one, if there is one.

        Raises:
            SatchelError: it is missing, damaged, unreadable, or another model's; ours is then not usable.
        """
        assert self._saved is not None
        manifest = self._saved.manifest
        identity = self.manager.identity(self._state)
        differing = identity_differences(manifest.identity, identity)
        if differing and manifest.profile_name != self.profile.name:
            differing = [name for name in differing if not name.startswith("kv.")]  # those follow from it
            differing.append(f"KV profile ({manifest.profile_name.partition(',raised=')[0]})")
        if differing:
            if "kv.codec" in differing:
                raise DamagedError("saved by another version of Satchel")
            raise DamagedError(f"saved with another {', '.join(differing)}")
        try:
            snapshot = load_snapshot(self.manager.store, manifest)
            if snapshot is None:
                return
            parts = [
                Part(block.start, block.stop, block.arrays, block.meta)
                for block in (*snapshot.blocks, snapshot.tail)
            ]
            restore(self._state, parts)
        except ValueError as err:
            raise DamagedError(str(err)) from err
        self.token_ids = snapshot.token_ids.tolist()
        self.reused_tokens = self._stored_tokens = len(self.token_ids)

    def save(self, name: str | None = None) -> None:
        """Save the transcript and the state that the store has not got yet, as the next generation.

        Where another process has saved the session since, this one goes on as a fork, and both are kept.

        Raises:
            UsageError: the name breaks the rule or is taken.
            SatchelError: the disk refused; the earlier save is intact.
        """
        with self.manager.store.locked():  # a name that is free now must still be when the head is written
            self._take_over_new_name()
            name = validate_name(name) if name else self.name or self._free_name()
            try:
                self._save(name, self._saved)
            except HeadMovedError as err:
                change, old = "saved" if err.current else "removed", self.name
                fork = self.manager.store.free_name(name)
                self._stored_tokens = 0
                self._save(fork, None)
                self.notices.append(f"another process has {change} {old!r}: this talk goes on as {fork!r}")

    def archive(self, profile: Profile, notice: str | None) -> Archived:
        """Load the stored KV state and replace it by one of `profile`; see `SessionManager.archive`."""
        manager, base, stored = self.manager, self._saved, self.profile
        assert base is not None
        try:
            self._restore()
        except (NotFoundError, DamagedError) as err:
            hint = "resume it and say something: its words are read again, and saved with a new state"
            raise DamagedError(f"{base.head.name!r} cannot be archived: {err}", hint) from err
        archived = manager.factory.new(profile)
        transcode(self._state, archived)
        self._state, self.profile = archived, archived.profile
        origin = base.manifest.archived_from or stored.asked
        saved = self._put(self._snapshot(None), base.head.name, base, origin, drop_base_state=True)
        return Archived(self.profile.asked, base.head.stored_bytes, saved.head.stored_bytes, notice)

    def _take_over_new_name(self) -> None:
        """Go on from the newest generation where it differs from ours in nothing but its name."""
        current = self.manager.store.head(self.id) if self._saved else None
        if current is None or self._saved is None or current.manifest == self._saved.head.manifest:
            return
        manifest, ours = self.manager.store.get_manifest(current.manifest), self._saved.manifest
        if (manifest.messages, manifest.blocks, manifest.tail) == (ours.messages, ours.blocks, ours.tail):
            self._saved = Saved(current, manifest)

    def _save(self, name: str, base: Saved | None) -> None:
        try:
            snapshot = self._snapshot(base)
        except NonFiniteError as err:
            self.notices.append(f"{err}: only the words are saved")
            self._forget()
            snapshot = self._snapshot(base)
        self._put(snapshot, name, base, self._saved.manifest.archived_from if self._saved else None)

    def _put(
        self,
        snapshot: Snapshot,
        name: str,
        base: Saved | None,
        archived_from: str | None,
        drop_base_state: bool = False,
    ) -> Saved:
        self._saved = save_snapshot(
            self.manager.store,
            snapshot,
            self.messages,
            name=name,
            model_name=self.manager.model.name,
            profile_name=self.profile.name,
            base=base,
            archived_from=archived_from,
            drop_base_state=drop_base_state,
        )
        self._stored_tokens = len(self.token_ids)
        return self._saved

    def _snapshot(self, base: Saved | None) -> Snapshot:
        """What `base` has not got: new blocks and the tail."""
        self._state.round_recurrent()
        stored = [ref.stop for ref in base.manifest.blocks] if base else []
        start = max((stop for stop in stored if stop <= self._stored_tokens), default=0)
        count = len(self.token_ids)
        settled = settled_tokens(self._state) // BLOCK_TOKENS * BLOCK_TOKENS
        blocks = [
            self._block(export_block(self._state, first, first + BLOCK_TOKENS))
            for first in range(start, settled, BLOCK_TOKENS)
        ]
        tail = self._block(export_tail(self._state, max(start, settled), count))
        return Snapshot(self.manager.identity(self._state), tuple(blocks), tail)

    def _block(self, part: Part) -> Block:
        token_ids = np.array(self.token_ids[part.start : part.stop], dtype=np.uint32)
        return Block(part.start, part.stop, token_ids, part.arrays, part.meta)

    def _free_name(self) -> str:
        """A name from the first question's words."""
        question = next((message.content for message in self.messages if message.role == "user"), "")
        words = re.findall(r"\w+", question)[:6]
        name = " ".join(words)[: MAX_LENGTH // 2].strip() or "chat"
        return self.manager.store.free_name("chat" if name_fault(name) else name)

    def kv_elements(self) -> int:
        """Key and value coordinates that the KV state stands for."""
        return self._state.elements()

    # -- telling -------------------------------------------------------------------------------------

    def stats(self) -> dict[str, object]:
        """What `/stats` shows: label to value, in order."""
        model, state, last = self.manager.model, self._state, self._last_stats
        held, exact = state.nbytes, 2 * state.elements()
        archived = self._saved.manifest.archive_note if self._saved else None
        shown: dict[str, object] = {
            "session": self.name or "not saved yet",
            "model": f"{model.name} ({model.dtype} on {model.device.kind})".replace("mlx.core.", ""),
            "KV profile": self.profile.asked + (f", {archived}" if archived else ""),
            "context": f"{len(self.token_ids):,} of {model.context_length:,} tokens",
            "KV in memory": f"{held / 1e6:.1f} MB (16-bit would be {exact / 1e6:.1f} MB)",
            "loaded": f"reused {self.reused_tokens} tokens",
        }
        if last:
            shown["last turn"] = (
                f"read {last.prompt_tokens} tokens at {last.prefill_tps:.0f}/s, kept {last.reused_tokens}, "
                f"wrote {last.generated_tokens} at {last.decode_tps:.1f}/s"
            )
            shown["peak memory"] = f"{last.peak_memory_bytes / 1e6:.0f} MB"
        return shown
