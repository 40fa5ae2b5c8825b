"""Stored sessions in fewer bits: what is re-encoded, what stays, what is said, and when it is refused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from pydoc_data.topics import topics

import mlx.core as mx
import numpy as np
import pexpect
import pytest
import tiny_models
from state_parts import export_tail

from satchel.cache_store.local import HeadMovedError, LocalStore
from satchel.cache_store.maintenance import collect
from satchel.cache_store.manifest import Head, Manifest, decode_manifest
from satchel.config.profiles import get_profile
from satchel.config.settings import Settings
from satchel.engine.archive import archive_profile, transcode
from satchel.engine.generate import Delta
from satchel.engine.kv_cache import TurboQuantKVCache
from satchel.engine.kv_state import KVFactory, KVState
from satchel.engine.model import LoadedModel
from satchel.errors import DamagedError, NotFoundError, SatchelError, UsageError
from satchel.session import Archived, Session, SessionManager

TEXT = topics["assignment"]
GOLDEN = Path(__file__).parent / "golden"
MARK = "archived from turbo4: lossy"


# The state of a model


def filled(model: mx.array, profile: str, tokens: int = 400, dtype: mx.Dtype = mx.float16) -> KVState:
    """A state that has read `tokens` tokens, 200 at a time."""
    state = KVFactory(model, dtype).new(get_profile(profile))
    mx.random.seed(5)
    token_ids = mx.random.randint(0, tiny_models.VOCABULARY, (1, tokens))
    for start in range(0, tokens, 200):
        mx.eval(model(token_ids[:, start : start + 200], cache=state.caches))
    return state


def empty_state(model: mx.array, profile: str) -> KVState:
    return KVFactory(model, mx.float16).new(get_profile(profile))


def in_fewer_bits(model: mx.array, before: str, after: str) -> tuple[KVState, KVState]:
    old, new = filled(model, before), empty_state(model, after)
    transcode(old, new)
    return old, new


def compressed(state: KVState) -> list[TurboQuantKVCache]:
    return [cache for cache in state.caches if isinstance(cache, TurboQuantKVCache)]


def same(one: mx.array, other: mx.array) -> bool:
    return one.dtype == other.dtype and mx.array_equal(one, other).item()


def test_codes_are_encoded_anew_and_exact_tokens_taken_over() -> None:
    old, new = in_fewer_bits(tiny_models.tiny_llama(), "k4v4", "k2v2")
    for was, now in zip(compressed(old), compressed(new), strict=True):
        assert (now.offset, now.attended, now.sink_tokens, now.body_tokens) == (400, 400, 4, 256)
        assert same(now.keys, was.keys)
        assert same(now.values, was.values)
        arrays = now.arrays()
        assert arrays["k.codes"].shape == arrays["v.codes"].shape == (1, 2, 256, 64 * 2 // 32)
        assert arrays["k.grid"].shape == (1, 2, 256, 1)


def test_what_two_bits_lose_is_lost_once_and_no_more() -> None:
    """Lloyd and Max lose .117 of a Gaussian's energy in 2 bits, fitted uniform grids about as much."""
    for before in ("k8v8", "exact"):
        old, new = in_fewer_bits(tiny_models.tiny_biased(), before, "k2v2")
        for was, now in zip(old.caches, compressed(new), strict=True):
            assert now.key_body.mean_turns
            first = filled_keys(was)[:, :, 4:260]
            error = mx.square(now.key_body.dense(4, mx.float32) - first).sum()
            held = now.arrays()["k.mean"]
            energy = mx.square(first - now.key_body.rope.turn(held, 4, 260)).sum()
            assert 0.05 < (error / energy).item() < 0.15, before


def filled_keys(cache: object) -> mx.array:
    """All keys in order, float32."""
    if not isinstance(cache, TurboQuantKVCache):
        return cache.keys[:, :, : cache.offset].astype(mx.float32)
    keys, _ = cache._dense(mx.float32)
    return keys


def test_the_mean_is_that_of_all_tokens() -> None:
    old, new = in_fewer_bits(tiny_models.tiny_llama(), "k8v8", "k2v2")
    for was, now in zip(compressed(old), compressed(new), strict=True):
        expected = was._dense(mx.float32)[1][:, :, 4:].mean(2, keepdims=True)
        np.testing.assert_allclose(np.array(now.arrays()["v.mean"]), np.array(expected), atol=1e-5)


def test_a_side_with_the_same_codec_is_taken_over_bit_for_bit() -> None:
    old, new = in_fewer_bits(tiny_models.tiny_biased(), "k4v4", "k4v2")
    for was, now in zip(compressed(old), compressed(new), strict=True):
        assert now.key_body.mean_turns
        for name, array in now.arrays().items():
            same_side = name.startswith("k.") or name == "v.exact"
            assert (array.shape == was.arrays()[name].shape) is (name != "v.codes")
            assert not same_side or same(array, was.arrays()[name]), name


def test_an_exact_state_becomes_what_reading_at_once_makes() -> None:
    model = tiny_models.tiny_llama()
    old, new = filled(model, "exact"), empty_state(model, "turbo4")
    transcode(old, new)
    read = empty_state(model, "turbo4")
    keys, values = (x[:, :, :400] for x in (old.caches[0].keys, old.caches[0].values))
    read.caches[0].update_and_fetch(keys, values)
    read.caches[0].attend(mx.zeros((1, 6, 400, 64)), 1.0, "causal")
    assert new.caches[0].arrays().keys() == read.caches[0].arrays().keys()
    for name, array in new.caches[0].arrays().items():
        assert same(array, read.caches[0].arrays()[name]), name
    assert [cache.attended for cache in compressed(new)] == [400, 400]


def test_codes_that_become_exact_are_16_bits_wide() -> None:
    _, new = in_fewer_bits(tiny_models.tiny_llama(), "k8v16", "k16v2")
    assert [cache.arrays()["k.x"].dtype for cache in compressed(new)] == [mx.float16, mx.float16]


@pytest.mark.parametrize("codec", ["tq-mse", "tq-prod", "affine"])
def test_other_codecs_are_encoded_anew_too(codec: str) -> None:
    old, new = in_fewer_bits(tiny_models.tiny_llama(), f"{codec}4", f"{codec}2")
    for was, now in zip(compressed(old), compressed(new), strict=True):
        assert now.body_tokens == was.body_tokens == 256
        assert now.nbytes < was.nbytes


@pytest.mark.parametrize("make", [tiny_models.tiny_qwen35, tiny_models.tiny_gemma3, tiny_models.tiny_llama])
def test_other_layers_are_taken_over_and_the_model_goes_on(make: Callable[[], mx.array]) -> None:
    model = make()
    old, new = in_fewer_bits(model, "k8v8", "k4v4")
    others = [
        (was, now)
        for was, now in zip(old.caches, new.caches, strict=True)
        if not isinstance(now, TurboQuantKVCache)
    ]
    assert all(was is now for was, now in others)
    exact = filled(model, "exact")
    got, expected = (model(mx.array([[7, 8, 9]]), cache=state.caches) for state in (new, exact))
    p, q = (x.astype(mx.float32) - mx.logsumexp(x, axis=-1, keepdims=True) for x in (expected, got))
    assert 0 < (mx.exp(p) * (p - q)).sum(-1).mean().item() < 0.1  # an empty state's is over 1


@pytest.mark.parametrize(
    ("before", "after", "tokens"),
    [("k2v2", "k4v4", 400), ("k4v4", "k4v4", 400), ("k4v4", "exact", 400), ("k4v4", "k2v2", 150)],
)
def test_what_saves_nothing_is_refused(before: str, after: str, tokens: int) -> None:
    model = tiny_models.tiny_llama()
    old, new = filled(model, before, tokens), empty_state(model, after)
    with pytest.raises(UsageError, match=f"^as {after} the state would take .* MB, and as {before} it takes"):
        transcode(old, new)
    assert all(cache.empty() for cache in new.caches)


def test_other_exact_tokens_are_a_fault_of_the_caller() -> None:
    model = tiny_models.tiny_llama()
    with pytest.raises(ValueError, match="other tokens exactly"):
        transcode(filled(model, "k4v4"), empty_state(model, "k2v2,window=64"))


@pytest.mark.parametrize(
    ("stored", "wanted", "name"),
    [
        ("turbo4", "turbo2", "turbo2"),
        ("turbo4,raised=0.3", "turbo2", "turbo2"),
        ("turbo4", "turbo2,raised=1", "turbo2,raised=1"),
        ("turbo4,window=256,raised=5", "turbo2", "turbo2,window=256"),
        ("turbo4,sink=0,boundary=2", "k3v2", "k3v2,sink=0,boundary=2"),
        ("turbo4,boundary=2", "turbo2,boundary=0", "turbo2,boundary=0"),
        ("turbo4,window=64", "turbo2,window=64", "turbo2,window=64"),
        ("turbo4,recurrent=8", "turbo2", "turbo2,recurrent=8"),
    ],
)
def test_options_that_are_not_named_stay_as_they_are_stored(stored: str, wanted: str, name: str) -> None:
    assert archive_profile(get_profile(stored), get_profile(wanted)) == get_profile(name)


@pytest.mark.parametrize("option", ["sink=8", "window=64"])
def test_another_sink_or_window_is_refused(option: str) -> None:
    with pytest.raises(UsageError, match="an archive keeps the session's"):
        archive_profile(get_profile("turbo4"), get_profile(f"turbo2,{option}"))


# Stored sessions


@pytest.fixture(scope="module")
def tiny(smollm: LoadedModel) -> LoadedModel:
    """A small random model under SmolLM2's tokenizer."""
    model = tiny_models.tiny_llama(vocabulary=len(smollm.tokenizer))
    return replace(
        smollm,
        name="archive-tiny",
        model=model,
        fingerprint=replace(smollm.fingerprint, weights="archive-tiny"),
    )


@pytest.fixture(scope="module")
def chatted(smollm: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a session `talk` of the embedded model. Not to be changed."""
    home = tmp_path_factory.mktemp("chatted")
    session = managing(smollm, home).new()
    say(session, TEXT[:3000])
    session.save("talk")
    return home


@pytest.fixture
def manager(tiny: LoadedModel, satchel_home: Path) -> SessionManager:
    return managing(tiny, satchel_home, "k4v4")


def managing(model: LoadedModel, home: Path, profile: str = "turbo4") -> SessionManager:
    return SessionManager(LocalStore(home), model, get_profile(profile), Settings(temperature=0.0))


def say(session: Session, text: str, max_tokens: int = 4) -> list[int]:
    events = session.reply(text, max_tokens=max_tokens, cancel=threading.Event())
    return [event.token_id for event in events if isinstance(event, Delta) and event.token_id is not None]


@pytest.fixture
def talk(manager: SessionManager) -> Session:
    """A stored session of over two blocks, called `talk`."""
    session = manager.new()
    say(session, TEXT[:3000])
    session.save("talk")
    assert len(session.token_ids) > 600
    return session


def stored_files(home: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(home)): path.read_bytes() for path in home.rglob("v1/*/**/*") if path.is_file()
    }


def next_logits(session: Session) -> mx.array:
    """After one more token, which the state forgets again: log-probabilities, float32."""
    logits = session.manager.model.model(mx.array([[7]]), cache=session._context.state.caches)[0, -1]
    session._context.state.trim(1)
    return logits.astype(mx.float32) - mx.logsumexp(logits.astype(mx.float32))


def test_a_real_talk_takes_less_room_and_goes_on(
    smollm: LoadedModel, chatted: Path, satchel_home: Path
) -> None:
    shutil.copytree(chatted, satchel_home)
    talked = managing(smollm, satchel_home).open("talk")
    head, files = talked.manager.store.find("talk"), stored_files(satchel_home)
    stored_bytes_before = disk_bytes(satchel_home)

    told = managing(smollm, satchel_home).archive("talk", get_profile("turbo2"))
    archived = talked.manager.store.find("talk")
    grown = disk_bytes(satchel_home) - stored_bytes_before
    freed = archived.stored_bytes + len(words_before(satchel_home, archived)) - grown
    assert told == Archived("turbo2", head.stored_bytes, archived.stored_bytes, freed, None)
    assert archived.stored_bytes < 0.88 * head.stored_bytes  # 192 of its 700 tokens stay exact
    assert archived.token_count == head.token_count > 650
    assert sum(map(len, stored_files(satchel_home).values())) < 0.9 * sum(map(len, files.values()))

    resumed = managing(smollm, satchel_home).open("talk")
    assert resumed.notices == [MARK]
    assert resumed.stats()["KV profile"] == f"turbo2, {MARK}"
    assert (resumed.reused_tokens, resumed.token_ids) == (head.token_count, talked.token_ids)
    assert resumed.messages == talked.messages
    exact, fewer = next_logits(talked), next_logits(resumed)
    # One position: at 2 bits one in a hundred loses this much, and a state gone wrong several nats.
    assert 0 < (mx.exp(exact) * (exact - fewer)).sum().item() < 0.6

    assert len(say(resumed, "Say that in fewer words.", max_tokens=8)) == 8
    resumed.save()
    again = managing(smollm, satchel_home).open("talk")
    assert again.notices == [MARK]
    assert again.reused_tokens == len(resumed.token_ids) > head.token_count
    for name, array in state_arrays(again).items():
        np.testing.assert_array_equal(array, state_arrays(resumed)[name], strict=True)


def words_before(home: Path, head: Head) -> bytes:
    """The manifest before the one of `head`."""
    current = decode_manifest((home / "v1" / "manifests" / head.manifest).read_bytes())
    assert current.parent
    return (home / "v1" / "manifests" / current.parent).read_bytes()


def disk_bytes(home: Path) -> int:
    """Of blocks, tails and manifests."""
    return sum(len(data) for name, data in stored_files(home).items() if "/heads/" not in name)


def state_arrays(session: Session) -> dict[str, np.ndarray]:
    return dict(export_tail(session._context.state, 0, len(session.token_ids)).arrays)


def test_only_what_the_archive_needs_stays_on_disk(talk: Session, satchel_home: Path) -> None:
    say(talk, "And then?")
    talk.save()
    talk.manager.archive("talk", get_profile("k2v2"))
    head = talk.manager.store.find("talk")
    manifest = talk.manager.store.get_manifest(head.manifest)
    needed = {ref.sha256 for ref in (*manifest.blocks, manifest.tail)}
    assert {path.name for path in satchel_home.glob("v1/blocks/*/*")} == needed
    assert {path.name for path in satchel_home.glob("v1/manifests/*")} == {head.manifest, manifest.parent}
    assert manifest.blocks[0].start == 0
    assert manifest.generation == 3


def test_a_damaged_archive_still_has_the_words_of_before(talk: Session, satchel_home: Path) -> None:
    talk.manager.archive("talk", get_profile("k2v2"))
    (satchel_home / "v1" / "manifests" / talk.manager.store.find("talk").manifest).write_bytes(b"")
    opened = talk.manager.open("talk")
    assert opened.messages == talk.messages
    assert opened.reused_tokens == 0
    assert opened.notices[0].endswith("'talk' goes on from the save before, with 2 messages")


def test_blocks_of_a_fork_stay(talk: Session) -> None:
    other = talk.manager.open("talk")
    say(talk, "And then?")
    talk.save()
    say(other, "Why?")
    other.save()
    assert other.name == "talk-2"
    talk.manager.archive("talk", get_profile("k2v2"))
    fork = talk.manager.open("talk-2")
    assert (fork.notices, fork.reused_tokens) == ([], len(other.token_ids))


def test_a_chat_that_is_open_meanwhile_goes_on_with_its_state(talk: Session) -> None:
    talk.manager.archive("talk", get_profile("k2v2"))
    say(talk, "And then?")
    talk.save()
    assert (talk.notices, talk.name) == ([], "talk")
    opened = talk.manager.open("talk")
    assert (opened.notices, opened.reused_tokens) == ([], len(talk.token_ids))
    assert opened.profile == talk.profile


def test_the_mark_stays_with_all_that_comes_after(talk: Session) -> None:
    manager, store = talk.manager, talk.manager.store
    manager.archive("talk", get_profile("k3v3"))
    manager.archive("talk", get_profile("k2v2"))
    assert store.find("talk").profile_name == "k2v2"
    store.rename(store.find("talk").session_id, "renamed")
    session, other = manager.open("renamed"), manager.open("renamed")
    for each, question in ((session, "And then?"), (other, "Why?")):
        assert each.notices == ["archived from k4v4: lossy"]
        say(each, question)
        each.save()
    assert {head.name: head.archived_from for head in store.heads().heads} == {
        "renamed": "k4v4",
        "renamed-2": "k4v4",
    }


def test_options_of_a_session_come_along(manager: SessionManager) -> None:
    session = Session(manager, get_profile("k4v4,window=256"))
    say(session, TEXT[:3000])
    session.save("talk")
    manager.archive("talk", get_profile("k2v2"))
    opened = manager.open("talk")
    assert opened.profile == get_profile("k2v2,window=256")
    assert opened.notices == ["archived from k4v4,window=256: lossy"]
    assert same(opened._context.state.caches[0].keys, session._context.state.caches[0].keys)


def refused(talk: Session, home: Path, error: type[SatchelError], profile: str = "k2v2") -> SatchelError:
    """The error of an archive that leaves every stored byte as it is."""
    before = stored_files(home)
    with pytest.raises(error) as caught:
        talk.manager.archive("talk", get_profile(profile))
    assert stored_files(home) == before
    return caught.value


@pytest.mark.parametrize("profile", ["k4v4", "k8v4,boundary=1", "exact", "k2v2,window=64"])
def test_more_bits_or_another_window_are_refused(talk: Session, satchel_home: Path, profile: str) -> None:
    assert refused(talk, satchel_home, UsageError, profile).exit_code == 2


def test_a_profile_that_the_model_does_not_stand_is_refused_with_the_reason(
    talk: Session, satchel_home: Path
) -> None:
    """Random weights stand none that is measured."""
    error = refused(talk, satchel_home, UsageError, "turbo2")
    assert str(error).startswith(
        "turbo2 would cost this model too much quality: exact is used; as exact the state would take "
    )


def test_an_unknown_session_is_refused(manager: SessionManager) -> None:
    with pytest.raises(NotFoundError):
        manager.archive("talk", get_profile("k2v2"))


@pytest.mark.parametrize("harm", [lambda path: path.unlink(), lambda path: path.write_bytes(b"")])
def test_a_missing_or_damaged_state_is_refused(
    talk: Session, satchel_home: Path, harm: Callable[[Path], object]
) -> None:
    manifest = talk.manager.store.get_manifest(talk.manager.store.find("talk").manifest)
    sha256 = manifest.blocks[1].sha256
    harm(satchel_home / "v1" / "blocks" / sha256[:2] / sha256)
    error = refused(talk, satchel_home, DamagedError)
    assert error.exit_code == 4
    assert str(error).startswith(f"'talk' cannot be archived: block {sha256[:12]} is ")
    assert "its words are read again" in error.hint


def test_a_state_of_another_model_is_refused(talk: Session, tiny: LoadedModel, satchel_home: Path) -> None:
    talk.manager = managing(
        replace(tiny, fingerprint=replace(tiny.fingerprint, weights="archive-tiny-2")), satchel_home, "k4v4"
    )
    error = refused(talk, satchel_home, DamagedError)
    assert str(error) == "'talk' cannot be archived: saved with another model.weights"


def test_a_damaged_last_save_is_refused(talk: Session, satchel_home: Path) -> None:
    say(talk, "And then?")
    talk.save()
    (satchel_home / "v1" / "manifests" / talk.manager.store.find("talk").manifest).write_bytes(b"")
    error = refused(talk, satchel_home, DamagedError)
    assert str(error) == "the last save of 'talk' is damaged"


def test_words_alone_are_refused(talk: Session, satchel_home: Path) -> None:
    talk._forget()
    talk.save()
    refused(talk, satchel_home, UsageError)


def test_an_interrupted_archive_leaves_the_old_session(
    talk: Session, satchel_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = stored_files(satchel_home)

    def interrupted(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(LocalStore, "commit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            talk.manager.archive("talk", get_profile("k2v2"))
    assert before.items() <= stored_files(satchel_home).items()
    opened = talk.manager.open("talk")
    assert (opened.notices, opened.reused_tokens) == ([], len(talk.token_ids))
    assert opened.profile.asked == "k4v4"
    collect(talk.manager.store, grace_s=0)
    assert stored_files(satchel_home) == before


def test_an_archive_of_what_has_moved_on_is_refused(
    talk: Session, satchel_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = LocalStore.commit

    def moved(store: LocalStore, manifest: Manifest, expected: str | None) -> None:
        commit(store, manifest, "0" * 64)

    with monkeypatch.context() as patched:
        patched.setattr(LocalStore, "commit", moved)
        with pytest.raises(HeadMovedError):
            talk.manager.archive("talk", get_profile("k2v2"))
    opened = talk.manager.open("talk")
    assert (opened.notices, opened.reused_tokens) == ([], len(talk.token_ids))


def test_earlier_manifests_are_of_sessions_that_were_not_archived() -> None:
    manifest = decode_manifest((GOLDEN / "manifest-1.zst").read_bytes())
    assert (manifest.archived_from, manifest.archive_note) == (None, None)


# The command


@pytest.fixture
def environment(chatted: Path, tmp_path: Path) -> dict[str, str]:
    home = shutil.copytree(chatted, tmp_path / "copy")
    return os.environ | {"SATCHEL_HOME": str(home)}


Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def satchel(environment: dict[str, str]) -> Iterator[Run]:
    def run(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "satchel", *args],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    yield run


def test_the_command_says_what_it_saved_and_others_say_that_it_is_lossy(satchel: Run) -> None:
    (before,) = json.loads(satchel("sessions", "list", "--json").stdout)
    archived = satchel("sessions", "archive", "talk", "--yes")
    (after,) = json.loads(satchel("sessions", "list", "--json").stdout)
    assert (archived.returncode, archived.stderr) == (0, "")
    sizes = [f"{head['stored_bytes'] / 1e6:.1f} MB" for head in (before, after)]
    said = f"talk: {sizes[0]} before, {sizes[1]} in turbo2; lossy: answers may differ from before\n"
    assert archived.stdout == said
    assert after["stored_bytes"] < before["stored_bytes"]
    assert (before["archived_from"], after["archived_from"]) == (None, "turbo4")

    assert satchel("sessions", "list").stdout.endswith(f" ({MARK})\n")
    assert satchel("sessions", "show", "talk").stderr == f"{MARK}\n"
    assert json.loads(satchel("sessions", "show", "talk", "--json").stdout)["archived_from"] == "turbo4"
    reused = f"going on in talk: reused {before['token_count']} tokens"
    assert satchel("resume", "talk").stderr.splitlines() == [MARK, reused]

    again = satchel("sessions", "archive", "talk", "--yes", "--kv", "turbo3")
    assert (again.returncode, again.stdout) == (2, "")
    assert again.stderr.startswith("satchel: as turbo3 the state would take ")
    assert again.stderr.count("\n") == 1


@pytest.mark.slow
def test_the_command_says_when_the_store_is_no_smaller(satchel: Run, environment: dict[str, str]) -> None:
    """Nothing is deleted while it is not known what a damaged head refers to."""
    home = Path(environment["SATCHEL_HOME"])
    head = home / "v1" / "heads" / f"{'0' * 32}.json"
    head.write_bytes(b"")
    blocks = set(home.glob("v1/blocks/*/*"))
    archived = satchel("sessions", "archive", "talk", "--yes")
    assert archived.returncode == 0
    assert archived.stderr == (
        "the store is no smaller yet: another session uses the state of before, or one cannot be read\n"
    )
    assert blocks < set(home.glob("v1/blocks/*/*"))

    assert satchel("sessions", "rm", "0" * 32, "--yes").returncode == 0
    assert satchel("store", "gc", "--grace", "0s").returncode == 0
    assert not blocks & set(home.glob("v1/blocks/*/*"))


@pytest.mark.parametrize(
    ("args", "exit_code", "complaint"),
    [
        (["talk"], 6, "archiving is lossy and cannot be undone; `--yes` agrees to it"),
        (["nobody", "--yes"], 3, "no session is called 'nobody'"),
        (
            ["talk", "--yes", "--kv", "turbo9"],
            2,
            "no KV profile is called 'turbo9' (turbo has 2, 3, 4, 8 bits, not 9); ",
        ),
        (["--yes"], 2, "the argument 'name' is missing"),
    ],
)
def test_wrong_use_is_one_line(satchel: Run, args: list[str], exit_code: int, complaint: str) -> None:
    refused = satchel("sessions", "archive", *args)
    assert (refused.returncode, refused.stdout) == (exit_code, "")
    assert refused.stderr.startswith(f"satchel: {complaint}")
    assert refused.stderr.count("\n") == 1


def test_at_a_terminal_no_is_an_answer(environment: dict[str, str], satchel: Run) -> None:
    asked = pexpect.spawn(
        sys.executable, ["-m", "satchel", "sessions", "archive", "talk"], env=environment, timeout=60
    )
    asked.expect_exact("Store 'talk' in turbo2? It cannot be undone, and answers may differ. [y/N]:")
    asked.sendline("n")
    asked.expect_exact("satchel: 'talk' stays as it is")
    asked.expect(pexpect.EOF)
    asked.close()
    assert asked.exitstatus == 6
    assert json.loads(satchel("sessions", "list", "--json").stdout)[0]["profile_name"].startswith("turbo4")
