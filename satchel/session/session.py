"""A conversation: its transcript, the token ids the model has read, and the KV state they produced.

Joins engine and store. The transcript is the truth and the KV state a verified shortcut: where the state is
missing, foreign or damaged, the session opens all the same and is read again. Knows nothing of the terminal.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

from satchel.cache_store.figures import TurnFigures, figures_until
from satchel.cache_store.loading import find_prefix
from satchel.cache_store.local import HeadMovedError
from satchel.cache_store.manifest import Manifest, Message
from satchel.cache_store.names import MAX_LENGTH, name_fault, validate_name
from satchel.cache_store.sessions import Saved, fork_id, fork_session, open_session, save_snapshot
from satchel.cache_store.snapshot import BLOCK_TOKENS, identity_differences
from satchel.config.profiles import Profile
from satchel.engine.archive import transcode
from satchel.engine.generate import (
    Delta,
    Finished,
    Progress,
    Sampler,
    Stats,
    generate,
    log_probabilities,
    prefill,
)
from satchel.engine.prompt import common_prefix, continue_prompt, message_boundary, render
from satchel.engine.snapshot_io import NonFiniteError
from satchel.errors import DamagedError, NotFoundError, SatchelError, UsageError, VersionError
from satchel.session.context import Context, load_context
from satchel.session.summary import REQUEST, as_read, is_summary, summary_message

if TYPE_CHECKING:
    from satchel.session.manager import SessionManager


class ContextFullError(SatchelError):
    """The conversation does not fit into the model's context any more."""


class Session:
    """One conversation. `notices` collects lines for the user until they are taken."""

    def __init__(self, manager: SessionManager, profile: Profile, saved: Saved | None = None) -> None:
        self.manager = manager
        self.messages: list[Message] = list(saved.manifest.messages) if saved else []
        self.figures: tuple[TurnFigures, ...] = saved.manifest.figures if saved else ()  # of its turns
        self.reused_tokens = 0  # tokens that came from the store, when it was opened or since
        self.notices: list[str] = []
        self._saved = saved
        self._last_stats: Stats | None = None
        self._context = Context(manager.factory.new(profile))
        self._reads_all = False  # the next turn reads all by itself, for what was stored was damaged
        self.profile = self._context.state.profile  # with the layers named that have more bits
        if self._context.state.notice:
            self.notices.append(self._context.state.notice)

    @property
    def token_ids(self) -> list[int]:
        """What the KV state has read."""
        return self._context.token_ids

    @property
    def id(self) -> str:
        return self._saved.head.session_id if self._saved else ""

    @property
    def name(self) -> str | None:
        return self._saved.head.name if self._saved else None

    @property
    def saved_manifest(self) -> str:
        """The id of the manifest that it was saved as; empty if it never was."""
        return self._saved.head.manifest if self._saved else ""

    @property
    def unsaved(self) -> bool:
        """Whether something was said that the store has not."""
        saved = self._saved.manifest.messages if self._saved else ()
        return bool(self.turns()) and list(saved) != self.messages

    def take_notices(self) -> list[str]:
        """The lines for the user that nobody has taken yet."""
        taken, self.notices = self.notices, []
        return taken

    @property
    def system(self) -> str:
        """The system prompt of the session's own; "" if it has none."""
        first = self.messages[:1]
        return first[0].content if first and first[0].role == "system" else ""

    def set_system(self, text: str) -> None:
        """Begin the transcript with another system prompt, or with none if `text` is empty."""
        rest = self.messages[1:] if self.system else self.messages
        self.messages = [*([Message(role="system", content=text)] if text else []), *rest]

    @property
    def fill(self) -> float:
        """The share of the model's context that is used."""
        return len(self.token_ids) / self.manager.model.context_length

    @property
    def unread_tokens(self) -> int:
        """How many tokens were in the context after the last turn, if none is now; 0 if that is not known."""
        last = self.figures[-1] if self.figures else None
        if last is None or self.token_ids or is_summary(self.messages[-1]):
            return 0
        return last.tokens if last.turn == len(self.turns()) else 0

    def count_tokens(self, text: str) -> int:
        return len(self.manager.model.tokenizer.encode(text, add_special_tokens=False))

    def last_answer(self) -> str | None:
        """What the model said last, if it said anything."""
        answers = (message.content for message in reversed(self.messages) if message.role == "assistant")
        return next(answers, None)

    def since_summary(self) -> list[Message]:
        """What was said since the last summary; all of it, if there is none."""
        return [message for message in as_read(self.messages) if message.role != "system"]

    def note(self, question: str, answer: str | None = None) -> None:
        """Put into the transcript what happened without the model; it reads it with the next message."""
        messages = self._with_question(question)
        self.messages = [*messages, *([Message(role="assistant", content=answer)] if answer else [])]

    # -- talking -------------------------------------------------------------------------------------

    def reply(
        self,
        text: str,
        *,
        max_tokens: int,
        cancel: threading.Event,
        revise: Callable[[str], str] | None = None,
        sampler: Sampler | None = None,
    ) -> Iterator[Progress | Delta | Finished]:
        """Answer `text`, reading only what the KV state has not read yet.

        A turn that is closed before `Finished` leaves the transcript as it was.

        Args:
            revise: makes of the answer what the transcript keeps of it.
            sampler: in place of the manager's.

        Raises:
            ContextFullError: no room is left for a question and an answer.
        """
        model, settings = self.manager.model, self.manager.settings
        messages = self._with_question(text)
        prompt, stops = self._unread(messages)
        context = self._context
        reused = len(context.token_ids)
        room = self._room(reused + len(prompt))
        answer: list[str] = []
        answer_ids: list[int] = []
        self._forget()  # what a turn has read counts only once the turn has ended
        for event in generate(
            model,
            context.state,
            prompt,
            max_tokens=min(max_tokens, room),
            sampler=sampler or self.manager.sampler,
            logits_processors=self.manager.logits_processors,
            cancel=cancel,
            prefill_step=settings.prefill_step,
            reused_tokens=reused,
            stops=stops,
        ):
            match event:
                case Progress(done) if done in stops:
                    context.token_ids = [*context.token_ids[:reused], *prompt[:done]]
                    context.keep_checkpoint()
                case Delta(token_id, piece):
                    answer.append(piece)
                    answer_ids += [] if token_id is None else [token_id]
                case Finished(_, stats, read_tokens):
                    read = [*prompt, *answer_ids][:read_tokens]
                    context.token_ids = [*context.token_ids[:reused], *read]
                    self._context, self._reads_all = context, False
                    self._last_stats = stats
                    if answer:
                        said = (revise or str)("".join(answer))
                        self.messages = [*messages, Message(role="assistant", content=said)]
                        self._note_figures(stats)
            yield event

    def _note_figures(self, stats: Stats) -> None:
        """Keep what the turn took that has just ended. Sizes are those of shapes: nothing is computed."""
        turn = len(self.turns())
        decode_s = (stats.generated_tokens - 1) / stats.decode_tps if stats.decode_tps > 0 else 0.0
        figures = TurnFigures(
            turn=turn,
            tokens=len(self.token_ids),
            held_bytes=self.kv_bytes(),
            exact_bytes=2 * self.kv_elements(),
            read_tokens=stats.prompt_tokens,
            read_ms=round(1000 * stats.first_token_s),
            written_tokens=stats.generated_tokens,
            write_ms=round(1000 * decode_s),
        )
        self.figures = figures_until((*figures_until(self.figures, turn - 1), figures), turn)

    def _room(self, tokens: int) -> int:
        """How many tokens the model can take after `tokens`.

        Raises:
            ContextFullError: none.
        """
        length = self.manager.model.context_length
        if tokens >= length:
            raise ContextFullError(
                f"the context is full: this message would make {tokens:,} tokens, and the model takes "
                f"{length:,}",
                "shorten it, or /compact the talk, or start a new session",
            )
        return length - tokens

    def aside(
        self,
        text: str,
        *,
        max_tokens: int,
        cancel: threading.Event,
        messages: Sequence[Message] | None = None,
    ) -> Iterator[Progress | Delta | Finished]:
        """Answer `text` from a fork of the KV state: the talk goes on as if it had not been asked.

        Args:
            messages: what it is asked after, a beginning of the transcript; all of it if not given.

        Raises:
            ContextFullError: no room is left for a question and an answer.
        """
        manager = self.manager
        context, token_ids = self._forked(self._with_question(text, messages))
        reused = len(context.token_ids)
        yield from generate(
            manager.model,
            context.state,
            token_ids[reused:],
            max_tokens=min(max_tokens, self._room(len(token_ids))),
            sampler=manager.sampler,
            logits_processors=manager.logits_processors,
            cancel=cancel,
            prefill_step=manager.settings.prefill_step,
            reused_tokens=reused,
        )

    def log_probabilities(self, text: str, answers: Sequence[str]) -> list[float]:
        """How likely each of `answers` is as the beginning of an answer to `text`, in nats; asked aside.

        Raises:
            ContextFullError: no room is left for the question.
        """
        messages = self._with_question(text)
        context, token_ids = self._forked(messages)
        self._room(len(token_ids))
        tokenizer = self.manager.model.tokenizer
        prompt = render(tokenizer, _plain(messages))
        ids = [
            continue_prompt(tokenizer, token_ids, prompt + answer)[0][len(token_ids) :] for answer in answers
        ]
        unread = token_ids[len(context.token_ids) :]
        return log_probabilities(self.manager.model, context.state, unread, ids)

    def _forked(self, messages: Sequence[Message]) -> tuple[Context, list[int]]:
        """A fork of the context that has read a beginning of the prompt for `messages`, and that prompt."""
        context = self._context.fork()
        token_ids, shared = self._shared(messages)
        if not context.go_back(shared):
            context = Context(self.manager.factory.new(self.profile))
        return context, token_ids

    def read_ahead(self, cancel: threading.Event) -> Iterator[Progress]:
        """Read what the prompt of any next message begins with. What was read when `cancel` is set is kept.

        Raises:
            ContextFullError: that alone is more than the model takes.
        """
        # Of two messages that begin differently, what their prompts have in common.
        prompts = [self._shared(self._with_question(text))[0] for text in ("A", "1")]
        stop = common_prefix(*prompts)
        self._room(stop + 1)
        unread, stops = self._unread_of(self._with_question("A"), prompts[0][: stop + 1])
        context = self._context
        kept, total = len(context.token_ids), len(unread) - 1
        chunks = prefill(
            self.manager.model,
            context.state,
            unread[:-1],
            step=self.manager.settings.prefill_step,
            stops=stops,
        )
        while not cancel.is_set():
            self._forget()  # what is being read counts once it has been
            done = next(chunks, None)
            self._context = context
            if done is None:
                context.keep_checkpoint()
                break
            context.token_ids = [*context.token_ids[:kept], *unread[:done]]
            if done in stops:
                context.keep_checkpoint()
            yield Progress(done, total)

    def compact(self, *, max_tokens: int, cancel: threading.Event) -> Iterator[Progress | Delta | Finished]:
        """Summarise the talk, and have the model go on from the summary. The transcript keeps all of it.

        Nothing changes if `cancel` is set, or if it is closed before `Finished`.

        Raises:
            UsageError: nothing was said since the last summary.
            SatchelError: the model wrote none.
            ContextFullError: there is no room for a summary of even the first exchange.
        """
        messages = list(self.messages)
        if not any(message.role == "assistant" for message in as_read(messages)):
            raise UsageError("there is nothing to compact yet")
        end = self._summarisable(messages, max_tokens)
        summary: list[str] = []
        for event in self.aside(REQUEST, max_tokens=max_tokens, cancel=cancel, messages=messages[:end]):
            if isinstance(event, Delta):
                summary.append(event.text)
            if isinstance(event, Finished) and event.stop_reason != "cancelled":
                if not (text := "".join(summary).strip()):
                    raise SatchelError("the model wrote no summary, and nothing has changed", "try again")
                self.messages = [*messages, summary_message(text, messages, end)]
                self._forget()
            yield event

    def _summarisable(self, messages: Sequence[Message], max_tokens: int) -> int:
        """How many of `messages`, from their beginning, leave room for a summary of them.

        Raises:
            ContextFullError: not even the first exchange does.
        """
        starts = [index for index, message in enumerate(messages) if message.role == "user"]
        for end in [len(messages), *reversed(starts[1:])]:
            prompt = render(
                self.manager.model.tokenizer, _plain(self._with_question(REQUEST, messages[:end]))
            )
            if self.count_tokens(prompt) + max_tokens <= self.manager.model.context_length:
                return end
        raise ContextFullError("the context is full, and leaves no room for a summary", "start a new session")

    def _with_question(self, text: str, messages: Sequence[Message] | None = None) -> list[Message]:
        """The transcript with what the user says now; it goes on a question that got no answer yet."""
        messages = self.messages if messages is None else messages
        if messages and messages[-1].role == "user":
            *messages, pending = messages
            text = f"{pending.content}\n\n{text}"
        return [*messages, Message(role="user", content=text)]

    def _unread(self, messages: Sequence[Message]) -> tuple[list[int], frozenset[int]]:
        """The tokens to read next, and after how many of them a checkpoint is due.

        The context is taken back to where the new prompt leaves it, or what another session has read of the
        prompt is taken from the store, if that is more.
        """
        return self._unread_of(messages, self._shared(messages)[0])

    def _unread_of(
        self, messages: Sequence[Message], token_ids: list[int]
    ) -> tuple[list[int], frozenset[int]]:
        """As `_unread`, of `token_ids`, which the prompt for `messages` begins with; one at least is left."""
        shared = min(common_prefix(token_ids, self.token_ids), len(token_ids) - 1)
        before = len(self.token_ids)
        if not self._context.go_back(shared):
            self._forget()
        self._adopt(token_ids)
        kept = len(self.token_ids)
        if kept < min(before, shared):
            self.notices.append(f"this model's state cannot go back; {shared - kept:,} tokens are read again")
        if not self._context.state.needs_checkpoints:
            return token_ids[kept:], frozenset()
        interval = self.manager.settings.checkpoint_blocks * BLOCK_TOKENS
        due = self._context.checkpoints_due(len(token_ids), interval) | {
            message_boundary(self.manager.model.tokenizer, _plain(messages), token_ids)
        }
        return token_ids[kept:], frozenset(at - kept for at in due if kept < at < len(token_ids))

    def _shared(self, messages: Sequence[Message]) -> tuple[list[int], int]:
        """The prompt's token ids for `messages`, and how many of them the KV state has read."""
        tokenizer = self.manager.model.tokenizer
        return continue_prompt(tokenizer, self.token_ids, render(tokenizer, _plain(messages)))

    def _adopt(self, token_ids: Sequence[int]) -> None:
        """Take from the store what it holds of `token_ids`, if that spares reading a block or more."""
        manager, held = self.manager, len(self.token_ids)
        if self._reads_all or not manager.settings.share_prefixes or len(token_ids) - held <= BLOCK_TOKENS:
            return
        state = manager.factory.new(self.profile)
        identity = manager.identity(state)
        try:
            prefix = find_prefix(manager.store, identity, token_ids[:-1], state.needs_checkpoints)
            if prefix is None or prefix.stop < held + BLOCK_TOKENS or prefix.stop <= self.profile.sink:
                return
            self._context = load_context(manager.store, identity, state, prefix.refs, None)
        except SatchelError as err:
            self.notices.append(f"{err}: it is read again")
            return
        self._context.keep_checkpoint()
        self.reused_tokens = prefix.stop
        if prefix.name != self.name:
            self.notices.append(f"{prefix.stop:,} tokens come from {prefix.name!r}, and are not read again")

    def _forget(self) -> None:
        """Drop the KV state: the next turn reads the transcript again."""
        self._context = Context(self.manager.factory.new(self.profile))

    # -- going back, and another way -------------------------------------------------------------------

    def turns(self) -> list[str]:
        """What the user said, turn by turn."""
        return [message.content for message in self.messages if message.role == "user"]

    def restore_turn(self, turn: int) -> None:
        """Go back to where turn `turn` (from 1; 0 is the beginning) had ended.

        What followed is kept with the session, if it was saved: `abandoned` lists it.

        Raises:
            UsageError: there is no such turn.
            SatchelError: the disk refused to save what follows it.
        """
        starts = [index for index, message in enumerate(self.messages) if message.role == "user"]
        if not starts:
            raise UsageError("nothing was said yet")
        if is_summary(self.messages[-1]):
            starts.append(len(self.messages) - 1)
        if turn == len(starts):
            raise UsageError(f"turn {turn} is the last one: nothing follows it")
        if not 0 <= turn < len(starts):
            raise UsageError(
                f"there is no turn {turn}", f"0, the beginning, to {len(starts) - 1} can be gone to"
            )
        self._go_to(self.messages[: starts[turn]], self.figures)

    def restore_abandoned(self, manifest: Manifest) -> None:
        """Go on from words that were left behind, one of `abandoned`; those of now are left behind instead.

        Raises:
            SatchelError: the disk refused.
        """
        self._go_to(manifest.messages, manifest.figures)

    def _go_to(self, messages: Sequence[Message], figures: Sequence[TurnFigures]) -> None:
        saves = self.manager.settings.auto_save
        if saves and self.unsaved:
            self.save()
        try:  # some templates refuse what no user said anything in
            shared = self._shared(messages)[1] if messages else 0
        except SatchelError:
            shared = 0
        self.messages = list(messages)
        self.figures = figures_until(figures, len(self.turns()))
        self._last_stats = None
        if not shared or not self._context.go_back(shared):
            self._forget()
        if saves:
            self.save()
        else:
            self.notices.append("saving is off: what was not saved is not kept")

    def abandoned(self) -> list[Manifest]:
        """Earlier saves of this session whose words are not the beginning of those of now, newest first."""
        found: list[Manifest] = []
        for manifest_id in reversed(self._saved.manifest.abandoned if self._saved else ()):
            with contextlib.suppress(NotFoundError, DamagedError, VersionError):
                found.append(self.manager.store.get_manifest(manifest_id))
        return found

    def branch(self, name: str | None) -> str:
        """Go on as another session that begins like this one, which stays as it is; returns its name.

        Raises:
            UsageError: nothing was said yet, or the name breaks the rule or is taken.
            SatchelError: the disk refused.
        """
        store = self.manager.store
        if not self.turns():
            raise UsageError("nothing was said yet: there is nothing to branch from")
        with store.locked():
            if self.unsaved and self._saved and not self.manager.settings.auto_save:
                # What is in the store stays as it is, without the words that were not to be saved.
                self._save(name or store.free_name(self._saved.head.name), None)
            else:
                if self.unsaved:
                    self.save()
                assert self._saved is not None
                name = name or store.free_name(self._saved.head.name)
                self._saved = fork_session(store, self._saved, name)
        assert self._saved is not None
        return self._saved.head.name

    # -- store ---------------------------------------------------------------------------------------

    def load_state(self) -> None:
        """Load the stored KV state; on a miss say why in a notice, and leave the state empty."""
        try:
            self._restore()
        except SatchelError as err:
            self._forget()
            self._reads_all = True
            self.notices.append(f"{err}: the context is read again with the next message")

    def _restore(self) -> None:
        """Fill the empty KV state with the stored one, if there is one.

        Raises:
            SatchelError: it is missing, damaged, unreadable, or another model's; ours is then not usable.
        """
        assert self._saved is not None
        manifest, state, store = self._saved.manifest, self._context.state, self.manager.store
        if manifest.tail is None:
            if self.turns():
                self.notices.append("only its words are stored: they are read with the next message")
            return
        identity = self.manager.identity(state)
        differing = identity_differences(manifest.identity, identity)
        if differing and manifest.profile_name != self.profile.name:
            differing = [name for name in differing if not name.startswith("kv.")]  # those follow from it
            differing.append(f"KV profile ({manifest.profile_name.partition(',raised=')[0]})")
        if differing:
            if {"format", "kv.codec"} & set(differing):
                raise DamagedError("saved by another version of Satchel")
            raise DamagedError(f"saved with another {', '.join(differing)}")
        if manifest.token_count > self.manager.model.context_length:
            raise DamagedError(f"its {manifest.token_count:,} tokens are more than the model takes")
        self._context = load_context(store, identity, state, manifest.blocks, manifest.tail)
        self._context.archived_from = manifest.archived_from
        self._context.foreign = manifest.foreign
        self.reused_tokens = len(self.token_ids)

    def save(self, name: str | None = None) -> None:
        """Save the transcript and the state that the store has not got yet, as the next generation.

        Where another process has saved or removed the session since, or its head cannot be read, this one
        goes on as a fork, and whatever is there is kept.

        Raises:
            UsageError: the name breaks the rule or is taken.
            SatchelError: the disk refused; the earlier save is intact.
        """
        store = self.manager.store
        with store.locked():  # a name that is free now must still be when the head is written
            try:
                self._take_over_newer()
                self._save(validate_name(name) if name else self.name or self._free_name(), self._saved)
            except (HeadMovedError, DamagedError, VersionError) as err:
                old = self.name
                if old is None:
                    raise
                self._save(store.free_name(validate_name(name) if name else old), None)
                self.notices.append(f"{err}: this talk goes on as {self.name!r}")
        try:
            self.notices += filter(None, [self.manager.limit_store(self)])
        except SatchelError as err:  # saved it is
            self.notices.append(f"the store could not be made smaller: {err}")

    def archive(self, profile: Profile) -> Saved:
        """Load the stored KV state and replace it by one of `profile`; see `SessionManager.archive`."""
        manager, base, stored = self.manager, self._saved, self.profile
        assert base is not None
        try:
            self._restore()
        except (NotFoundError, DamagedError) as err:
            hint = "resume it and say something: its words are read again, and saved with a new state"
            raise DamagedError(f"{base.head.name!r} cannot be archived: {err}", hint) from err
        archived = manager.factory.new(profile)
        transcode(self._context.state, archived)
        origin = base.manifest.archived_from or stored.asked
        self._context = Context(archived, self.token_ids, archived_from=origin, foreign=self._context.foreign)
        self.profile = archived.profile
        return self._put(base.head.name, base, drop_base_state=True)

    def _take_over_newer(self) -> None:
        """Go on from what the store has made of this session since, where all its words are ours too.

        That is a newer generation where the session was renamed or its state dropped or archived, or where a
        save failed only after it was done; and another session where a sync made a fork of this one.

        Raises:
            DamagedError, VersionError: the head cannot be read.
        """
        store, ours = self.manager.store, self._saved
        current = store.head(self.id) if ours else None
        if ours is None or (current and current.manifest == ours.head.manifest):
            return
        if not self.follow(fork_id(ours.head.manifest)) and current:
            with contextlib.suppress(NotFoundError, DamagedError, VersionError):
                manifest = store.get_manifest(current.manifest)
                if self._goes_on_from(manifest):
                    self._saved = Saved(current, manifest)

    def overtaken_by(self) -> str | None:
        """The newest save of this session, a manifest's id, if it has words that are not ours."""
        with contextlib.suppress(NotFoundError, DamagedError, VersionError):
            current = self.manager.store.head(self.id) if self._saved else None
            if current and current.manifest != self.saved_manifest:
                manifest = self.manager.store.get_manifest(current.manifest)
                return None if self._goes_on_from(manifest) else current.manifest
        return None

    def follow(self, session_id: str) -> bool:
        """Go on as the session of this id, which a sync made of what the store had of this one.

        Returns whether it does. It does not where that session cannot be read, or has words that are not
        ours; the next save then makes a fork of its own.
        """
        assert self._saved is not None
        with contextlib.suppress(SatchelError):
            fork = open_session(self.manager.store, session_id)
            same = fork.manifest.messages == self._saved.manifest.messages
            if same or self._goes_on_from(fork.manifest):
                self._saved = fork
                self.notices.append(f"this talk goes on as {self.name!r}")
                return True
        return False

    def _goes_on_from(self, manifest: Manifest) -> bool:
        """Whether a later save than the one we know has words that are all ours too."""
        assert self._saved is not None
        told, ours = len(manifest.messages), self._saved
        is_later = told >= len(ours.manifest.messages) or manifest.parent == ours.head.manifest
        return is_later and self.messages[:told] == list(manifest.messages)

    def _save(self, name: str, base: Saved | None) -> None:
        try:
            self._put(name, base)
        except NonFiniteError as err:
            self.notices.append(f"{err}: only the words are saved")
            self._forget()
            self._put(name, base)

    def _put(self, name: str, base: Saved | None, drop_base_state: bool = False) -> Saved:
        manager, context = self.manager, self._context
        present = tuple(takewhile(manager.store.has_block, context.stored))
        self._saved = save_snapshot(
            manager.store,
            context.snapshot(
                manager.identity(context.state),
                start=present[-1].stop if present else 0,
                checkpoints=bool(manager.settings.checkpoint_blocks),
            ),
            self.messages,
            name=name,
            model_name=manager.model.name,
            profile_name=self.profile.name,
            base=base,
            kept=present,
            archived_from=context.archived_from,
            foreign=context.foreign,
            figures=figures_until(self.figures, len(self.turns())),
            drop_base_state=drop_base_state,
        )
        reused_bytes = sum(ref.stored_bytes for ref in present)
        manager.written_bytes += self._saved.head.stored_bytes - reused_bytes
        context.stored = self._saved.manifest.blocks
        stored = context.stored[-1].stop if context.stored else 0
        earlier, latest = context.checkpoints[:-1], context.checkpoints[-1:]
        context.checkpoints = [each for each in earlier if each.offset > stored] + latest
        return self._saved

    def _free_name(self) -> str:
        """A name from the first question's words."""
        question = next((message.content for message in self.messages if message.role == "user"), "")
        question = re.sub(r"(?<=\w)['\u2019](?=\w)", "", question)  # "What's": no name has an apostrophe
        words = re.findall(r"\w+", question)[:6]
        name = " ".join(words)[: MAX_LENGTH // 2].strip() or "chat"
        return self.manager.store.free_name("chat" if name_fault(name) else name)

    def kv_bytes(self) -> int:
        """Bytes of the KV state in memory, by the shapes of its arrays: nothing is computed."""
        return self._context.state.nbytes

    def kv_elements(self) -> int:
        """Key and value coordinates that the KV state stands for."""
        return self._context.state.elements()

    # -- telling -------------------------------------------------------------------------------------

    def stats(self) -> dict[str, object]:
        """What `/stats` shows: label to value, in order."""
        model, last = self.manager.model, self._last_stats
        held, exact = self.kv_bytes(), 2 * self.kv_elements()
        archived = self._context.archived_from
        shown: dict[str, object] = {
            "session": self.name or "not saved yet",
            "model": f"{model.name} ({model.dtype} on {model.device.kind})".replace("mlx.core.", ""),
            "KV profile": self.profile.asked + (f", archived from {archived}: lossy" if archived else ""),
            "context": f"{len(self.token_ids):,} of {model.context_length:,} tokens",
            "KV in memory": f"{held / 1e6:.1f} MB (16-bit would be {exact / 1e6:.1f} MB)",
            "loaded": f"reused {self.reused_tokens} tokens",
        }
        if last:
            shown["last turn"] = (
                f"read {last.prompt_tokens} tokens at {last.prefill_tps:.0f}/s, reused {last.reused_tokens}, "
                f"wrote {last.generated_tokens} at {last.decode_tps:.1f}/s"
            )
            shown["peak memory"] = f"{last.peak_memory_bytes / 1e6:.0f} MB"
        return shown


def _plain(messages: Sequence[Message]) -> list[dict[str, str]]:
    """What the model is to read of a transcript, as chat templates take it."""
    return [message.model_dump() for message in as_read(messages)]
