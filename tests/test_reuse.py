"""What a session takes from others, and going back and another way."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from test_session import (  # noqa: F401, the fixtures among them
    TEXT,
    Open,
    assert_same_state,
    assert_state_is_of_its_tokens,
    block_files,
    cold,
    hybrid,
    manifest_of,
    no_check,
    no_queue,
    open_manager,
    say,
    tiny,
    turn,
)

from satchel.agent.commands import run_command
from satchel.agent.desk import Desk
from satchel.agent.events import Notice, Output
from satchel.agent.toolbox import Toolbox
from satchel.cache_store.loading import load_snapshot
from satchel.cache_store.maintenance import prune
from satchel.cache_store.manifest import Message
from satchel.cache_store.sessions import fork_session, open_session
from satchel.config.profiles import get_profile
from satchel.engine.generate import Finished, Stats
from satchel.engine.model import LoadedModel
from satchel.errors import UsageError
from satchel.session import Session

PAPER = TEXT[:4200]  # some 990 tokens
OTHER = TEXT[4000:4400]


def ask(session: Session, text: str, max_tokens: int = 6) -> Stats:
    """How the turn went."""
    finished = turn(session, text, max_tokens)[-1]
    assert isinstance(finished, Finished)
    return finished.stats


def read_by_another(
    manager_of: Open, model: LoadedModel, profile: str = "turbo4", **chosen: object
) -> Session:
    """A stored session that has read `PAPER`."""
    session = manager_of(model, profile, **chosen).new()
    say(session, f"{PAPER}\n\nWhat is it about?")
    session.save("paper")
    return session


# Prefixes


@pytest.mark.parametrize("profile", ["turbo4", "k2v2", "v-only", "exact"])
def test_a_new_session_takes_what_another_has_read(
    open_manager: Open, tiny: LoadedModel, satchel_home: Path, profile: str
) -> None:
    first = read_by_another(open_manager, tiny, profile)
    before = block_files(satchel_home)
    session = open_manager(tiny, profile).new()
    stats = ask(session, f"{PAPER}\n\nWho wrote it?")
    shared = [ref for ref in manifest_of(first).blocks if ref.stop <= 768]
    assert (stats.reused_tokens, shared[-1].stop) == (768, 768)
    assert stats.prompt_tokens < 256 + 20
    assert session.notices == ["768 tokens come from 'paper', and are not read again"]

    session.save("another")
    assert manifest_of(session).blocks[: len(shared)] == tuple(shared)
    new = block_files(satchel_home).keys() - before.keys()
    assert len(new) == len(manifest_of(session).blocks) - len(shared) + 1
    resumed = open_manager(tiny, profile).open("another")
    assert (resumed.notices, resumed.reused_tokens) == ([], len(session.token_ids))
    assert_same_state(resumed, session)
    assert say(resumed, "And when?", 20) == say(session, "And when?", 20)


def test_what_was_taken_is_the_state_of_the_tokens(open_manager: Open, tiny: LoadedModel) -> None:
    read_by_another(open_manager, tiny, "exact")
    session = open_manager(tiny, "exact").new()
    assert ask(session, f"{PAPER}\n\nWho wrote it?").reused_tokens == 768
    assert_state_is_of_its_tokens(session)


def test_the_answer_is_the_one_that_reading_gives(open_manager: Open, smollm: LoadedModel) -> None:
    """With a short window, so that a short text is more than that and a block."""
    text, profile = " ".join(TEXT[:1600].split()), "turbo4,window=16"
    first = open_manager(smollm, profile).new()
    say(first, f"{text}\n\nWhat is an assignment?", 1)
    first.save("topic")
    session = open_manager(smollm, profile).new()
    question = f"{text}\n\nName the topic in five words."
    reads_all = cold(session)
    assert ask(session, question).reused_tokens == 256
    assert ask(reads_all, question).reused_tokens == 0
    assert session.messages == reads_all.messages


def test_another_beginning_shares_nothing(open_manager: Open, tiny: LoadedModel) -> None:
    read_by_another(open_manager, tiny)
    for chosen in ({"system_prompt": "Be brief."}, {"share_prefixes": False}):
        assert ask(open_manager(tiny, **chosen).new(), f"{PAPER}\n\nWho wrote it?").reused_tokens == 0
    assert ask(open_manager(tiny, "k8v4").new(), f"{PAPER}\n\nWho wrote it?").reused_tokens == 0
    assert ask(open_manager(tiny).new(), OTHER).reused_tokens == 0


def test_a_longer_talk_takes_over_from_a_shorter_one(open_manager: Open, tiny: LoadedModel) -> None:
    """Also in the middle of a talk: the second message is one that another session went on with."""
    first = open_manager(tiny).new()
    say(first, "Hello.")
    first.save("one")
    second = open_manager(tiny).open("one")
    say(second, PAPER)
    second.save("one")
    assert ask(first, f"{PAPER}\n\nWho wrote it?").reused_tokens == 768


def test_archived_state_is_not_taken(open_manager: Open, tiny: LoadedModel) -> None:
    first = read_by_another(open_manager, tiny, "k4v4")
    first.manager.archive("paper", get_profile("k2v2"))
    assert ask(open_manager(tiny, "k2v2").new(), f"{PAPER}\n\nWho wrote it?").reused_tokens == 0


def test_a_prefix_that_is_damaged_is_read(open_manager: Open, tiny: LoadedModel, satchel_home: Path) -> None:
    first = read_by_another(open_manager, tiny)
    damaged = manifest_of(first).blocks[1].sha256
    path = satchel_home / "v1" / "blocks" / damaged[:2] / damaged
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    session = open_manager(tiny).new()
    reads_all = cold(session)
    question = f"{PAPER}\n\nWho wrote it?"
    assert say(session, question) == say(reads_all, question)
    assert session.notices == [f"block {damaged[:12]} is damaged: its SHA-256 is another: it is read again"]
    session.save("healed")
    assert open_manager(tiny).open("paper").notices == []  # the same blocks, written again


def test_blocks_that_went_since_they_were_taken_are_saved_again(
    open_manager: Open, tiny: LoadedModel, satchel_home: Path
) -> None:
    read_by_another(open_manager, tiny)
    session = open_manager(tiny).new()
    assert ask(session, f"{PAPER}\n\nWho wrote it?").reused_tokens == 768
    for path in list(satchel_home.glob("v1/blocks/*/*")):
        path.unlink()
    session.save("another")
    resumed = open_manager(tiny).open("another")
    assert (resumed.notices, resumed.reused_tokens) == ([], len(session.token_ids))
    assert_same_state(resumed, session)


def test_without_the_index_nothing_is_lost(open_manager: Open, tiny: LoadedModel, satchel_home: Path) -> None:
    read_by_another(open_manager, tiny)
    for path in satchel_home.glob("v1/index.db*"):
        path.unlink()
    assert ask(open_manager(tiny).new(), f"{PAPER}\n\nWho wrote it?").reused_tokens == 768


# Layers that cannot go back


@pytest.mark.parametrize(
    ("blocks", "reused"),
    [
        pytest.param(1, 768, marks=pytest.mark.slow),
        (2, 512),
        pytest.param(4, 0, marks=pytest.mark.slow),
        (0, 0),
    ],
)
def test_a_hybrid_goes_on_from_a_checkpoint(
    open_manager: Open, hybrid: LoadedModel, blocks: int, reused: int
) -> None:
    first = read_by_another(open_manager, hybrid, "exact", checkpoint_blocks=blocks)
    stored = [ref.stop for ref in manifest_of(first).blocks if ref.checkpoint]
    assert stored == ([] if not blocks else list(range(256 * blocks, 769, 256 * blocks)))
    session = open_manager(hybrid, "exact", checkpoint_blocks=blocks).new()
    assert ask(session, f"{PAPER}\n\nWho wrote it?").reused_tokens == reused
    assert_state_is_of_its_tokens(session)


def test_checkpoints_are_kept_where_a_talk_goes_on(open_manager: Open, hybrid: LoadedModel) -> None:
    session = open_manager(hybrid, checkpoint_blocks=1).new()
    for start in (0, 1000, 2000, 3000):
        say(session, TEXT[start : start + 1000])
        session.save("talk")
    blocks = manifest_of(session).blocks
    assert len(blocks) >= 3
    resumed = open_manager(hybrid, checkpoint_blocks=1).open("talk")
    assert_same_state(resumed, session)
    resumed.restore_turn(3)
    session.restore_turn(3)
    assert say(resumed, "And then?", 20) == say(session, "And then?", 20)


# Forks


def test_a_fork_shares_blocks_and_goes_its_own_way(open_manager: Open, tiny: LoadedModel) -> None:
    first = read_by_another(open_manager, tiny)
    store = first.manager.store
    fork = fork_session(store, open_session(store, "paper"), "fork")
    assert fork.manifest.blocks == manifest_of(first).blocks
    assert fork.head.session_id != first.id
    assert fork.manifest.tail != manifest_of(first).tail

    say(first, "Go on.")
    first.save()
    forked = open_manager(tiny).open("fork")
    assert (forked.notices, forked.reused_tokens) == ([], fork.head.token_count)
    say(forked, "Stop.")
    forked.save()
    assert [message.content for message in open_session(store, "fork").manifest.messages][-2] == "Stop."
    assert [message.content for message in open_session(store, "paper").manifest.messages][-2] == "Go on."


def test_a_fork_without_its_state_keeps_the_words(
    open_manager: Open, tiny: LoadedModel, satchel_home: Path
) -> None:
    first = read_by_another(open_manager, tiny)
    store, saved = first.manager.store, open_session(first.manager.store, "paper")
    assert saved.manifest.tail
    (path,) = satchel_home.glob(f"v1/blocks/*/{saved.manifest.tail.sha256}")
    path.unlink()
    fork = fork_session(store, saved, "fork")
    assert (fork.manifest.messages, fork.manifest.tail) == (saved.manifest.messages, None)


def test_branch_goes_on_in_a_copy(open_manager: Open, tiny: LoadedModel) -> None:
    session = open_manager(tiny).new()
    say(session, "Hello.")
    assert session.branch("left") == "left"  # saved first
    assert [head.name for head in session.manager.store.heads().heads] == ["left", "Hello"]
    say(session, "To the left.")
    session.save()
    assert session.name == "left"
    assert len(open_session(session.manager.store, "Hello").manifest.messages) == 2
    assert session.branch(None) == "left-2"
    with pytest.raises(UsageError, match="there is a session called 'left' already"):
        session.branch("left")


# Going back


def talked(manager_of: Open, model: LoadedModel) -> Session:
    session = manager_of(model).new()
    for text in ("One?", "Two?", "Three?"):
        say(session, f"{text} {OTHER}")
        session.save("talk")
    return session


@pytest.mark.parametrize("model", ["tiny", "hybrid"])
def test_a_turn_is_restored_and_what_followed_is_kept(
    open_manager: Open, model: str, request: pytest.FixtureRequest
) -> None:
    loaded: LoadedModel = request.getfixturevalue(model)
    session = talked(open_manager, loaded)
    said = list(session.messages)
    session.restore_turn(1)
    assert session.messages == said[:2]
    (left,) = session.abandoned()
    assert list(left.messages) == said

    resumed = open_manager(loaded).open("talk")
    assert (resumed.messages, resumed.notices) == (said[:2], [])
    assert_same_state(resumed, session)
    say(session, "Another two?")
    session.save()
    assert list(session.abandoned()[0].messages) == said

    session.restore_abandoned(session.abandoned()[0])
    assert session.messages == said
    assert [manifest.questions[-1] for manifest in session.abandoned()] == ["Another two?"]
    assert [turn.split()[0] for turn in session.turns()] == ["One?", "Two?", "Three?"]
    assert list(open_session(session.manager.store, "talk").manifest.messages) == said


def test_what_is_trimmed_away_is_as_if_it_had_not_been(open_manager: Open, tiny: LoadedModel) -> None:
    session = open_manager(tiny, "exact").new()
    for text in ("One?", "Two?", "Three?"):
        say(session, text)
    session.restore_turn(1)
    say(session, "Two again?")
    assert_state_is_of_its_tokens(session)


def test_turns_that_are_not_there_cannot_be_restored(open_manager: Open, tiny: LoadedModel) -> None:
    session = talked(open_manager, tiny)
    for number, cause in (
        (3, "turn 3 is the last one"),
        (4, "there is no turn 4"),
        (-1, "there is no turn -1"),
    ):
        with pytest.raises(UsageError, match=cause):
            session.restore_turn(number)
    assert len(session.turns()) == 3


def test_the_beginning_is_restored_with_the_system_prompt(open_manager: Open, tiny: LoadedModel) -> None:
    session = open_manager(tiny, system_prompt="Be brief.").new()
    say(session, "One?")
    session.restore_turn(0)
    assert session.messages == [Message(role="system", content="Be brief.")]
    bare = talked(open_manager, tiny)
    bare.restore_turn(0)
    assert (bare.messages, bare.token_ids) == ([], [])
    say(bare, "Zero?")


def test_what_is_left_behind_survives_later_saves_and_a_sweep(open_manager: Open, tiny: LoadedModel) -> None:
    session = open_manager(tiny).new()
    say(session, PAPER)
    say(session, "And then?")
    session.save("talk")
    left = [message.content for message in session.messages]
    session.restore_turn(1)
    for number in range(4):
        say(session, f"{number}?")
        session.save()
    session.manager.store.index.rebuild()
    (abandoned,) = session.abandoned()
    assert [message.content for message in abandoned.messages] == left
    session.restore_abandoned(abandoned)
    session.save()
    resumed = open_manager(tiny).open("talk")
    assert [message.content for message in resumed.messages] == left
    assert ask(resumed, "And now?").reused_tokens >= 512


def test_commands_restore_and_branch(open_manager: Open, tiny: LoadedModel) -> None:
    session = talked(open_manager, tiny)
    settings = session.manager.settings
    desk = Desk(session.manager, session, settings, Toolbox(tiny, settings))
    (lines,) = run_command(desk, "/restore")
    assert isinstance(lines, Output)
    assert [line.split()[:2] for line in lines.text.splitlines()] == [
        ["1", "One?"],
        ["2", "Two?"],
        ["3", "Three?"],
    ]
    assert list(run_command(desk, "/restore 2")) == [
        Notice("back at turn 2; /restore lists what was left behind")
    ]
    (lines,) = run_command(desk, "/restore")
    assert isinstance(lines, Output)
    assert lines.text.splitlines()[2] == "left behind:"
    assert lines.text.splitlines()[3].split()[0] == "-1"
    assert "3 turns, the last: Three?" in lines.text.splitlines()[3]
    assert list(run_command(desk, "/restore -1"))
    assert len(session.turns()) == 3
    for wrong in ("/restore -9", "/restore 9", "/restore two"):
        with pytest.raises(UsageError):
            list(run_command(desk, wrong))
    assert list(run_command(desk, "/branch aside")) == [Notice("going on in aside; talk stays as it is")]


# Beside other processes


def test_a_session_whose_state_was_dropped_meanwhile_goes_on(open_manager: Open, tiny: LoadedModel) -> None:
    session = read_by_another(open_manager, tiny)
    store = session.manager.store
    prune(store, 0)
    assert load_snapshot(store, open_session(store, "paper").manifest) is None
    say(session, "Go on.")
    session.save()
    assert (session.name, session.notices) == ("paper", [])
    resumed = open_manager(tiny).open("paper")
    assert resumed.notices == []
    assert_same_state(resumed, session)


def test_a_question_without_an_answer_is_gone_on_with(open_manager: Open, tiny: LoadedModel) -> None:
    session = open_manager(tiny).new()
    session.messages = [Message(role="user", content="A long text.")]
    say(session, "What is it?")
    assert session.messages[0].content == "A long text.\n\nWhat is it?"
    assert len(session.messages) == 2


@pytest.mark.slow
def test_distributions_after_a_taken_prefix_are_near_the_exact_ones(
    open_manager: Open, smollm: LoadedModel
) -> None:
    """Of the real model in the default profile; mean KL over 32 tokens, in nats."""
    tokens = smollm.tokenizer.encode(TEXT)
    text = smollm.tokenizer.decode(tokens[:900])
    first = open_manager(smollm).new()
    say(first, text, 1)
    first.save("topic")
    session = open_manager(smollm).new()
    assert ask(session, f"{text}\n\nWhat is it about?", 1).reused_tokens == 768
    exact = open_manager(smollm, "exact", share_prefixes=False).new()
    ask(exact, f"{text}\n\nWhat is it about?", 1)
    assert session.token_ids == exact.token_ids
    following = mx.array([tokens[900:932]])
    logits = [smollm.model(following, cache=each._context.state.caches)[0] for each in (exact, session)]
    log_p, log_q = (np.array(each - mx.logsumexp(each, axis=-1, keepdims=True)) for each in logits)
    assert float((np.exp(log_p) * (log_p - log_q)).sum(-1).mean()) < 0.01


# Size


def test_above_the_size_asked_for_the_least_used_sessions_lose_their_state(
    open_manager: Open, tiny: LoadedModel, satchel_home: Path
) -> None:
    oldest = read_by_another(open_manager, tiny, share_prefixes=False)
    limit = 5 * sum(block_files(satchel_home).values()) // 2
    manager = open_manager(tiny, max_store_size=str(limit), share_prefixes=False)
    second = manager.new()
    say(second, f"{TEXT[2000:6000]}")
    second.save("second")
    assert second.notices == []
    third = manager.new()
    say(third, f"{TEXT[6000:10000]}")
    third.save("third")
    assert third.notices == [f"the store was above {limit}: of 'paper' only the words are kept"]
    assert sum(block_files(satchel_home).values()) <= limit
    for name, reused in (("paper", 0), ("second", len(second.token_ids)), ("third", len(third.token_ids))):
        assert manager.open(name).reused_tokens == reused
    assert manager.open("paper").messages == oldest.messages


def test_a_session_that_is_opened_counts_as_used(
    open_manager: Open, tiny: LoadedModel, satchel_home: Path
) -> None:
    read_by_another(open_manager, tiny, share_prefixes=False)
    second = open_manager(tiny, share_prefixes=False).new()
    say(second, f"{TEXT[2000:6000]}")
    second.save("second")
    open_manager(tiny).open("paper")
    pruned = prune(second.manager.store, sum(block_files(satchel_home).values()) - 1)
    assert [each.name for each in pruned.sessions] == ["second"]


def test_foreign_state_is_used_by_its_session_alone(open_manager: Open, tiny: LoadedModel) -> None:
    first = read_by_another(open_manager, tiny)
    first._context.foreign = True
    first.save()
    assert ask(open_manager(tiny).new(), f"{PAPER}\n\nWho wrote it?").reused_tokens == 0
    resumed = open_manager(tiny).open("paper")
    assert resumed.reused_tokens == len(first.token_ids)
    say(resumed, "Go on.")
    resumed.save()
    assert manifest_of(resumed).foreign
