"""The KV bench: texts, comparisons, needles, sizes and speeds, and `satchel bench kv` itself."""

from __future__ import annotations

import importlib.util
import io
import json
import math
import os
import subprocess
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
import storage as storage_bench
import tiny_models
from mlx_lm.models.cache import QuantizedKVCache
from state_parts import export_block
from tiny_models import tiny_llama

from satchel.config.profiles import get_profile
from satchel.engine.kv_state import KVFactory
from satchel.engine.model import LoadedModel
from satchel.errors import UsageError
from satchel.laboratory import needle, texts
from satchel.laboratory.caches import Candidate, caches_by_name, exact, held_arrays
from satchel.laboratory.filling import fill, keys_and_values
from satchel.laboratory.kv_bench import Plan, Step, run
from satchel.laboratory.plot import check_plot, points, style, title, write_plot
from satchel.laboratory.quality import QualityRow, Reference, agreement, compare, greedy, quality
from satchel.laboratory.report import Report, write_json
from satchel.laboratory.speed import speed
from satchel.laboratory.storage import StorageRow, storage
from satchel.terminal import bench as terminal_bench
from satchel.terminal.bench import Request, bench_kv, show

IDS = [number * 7 % 96 for number in range(512)]
has_matplotlib = importlib.util.find_spec("matplotlib") is not None


@pytest.fixture(scope="module")
def tiny_model(smollm: LoadedModel) -> LoadedModel:
    """A small random model behind the embedded one's tokenizer."""
    return behind_the_tokenizer(smollm, tiny_llama(vocabulary=smollm.args.vocab_size))


@pytest.fixture(scope="module")
def cache_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def tiny(tiny_model: LoadedModel, cache_home: Path, monkeypatch: pytest.MonkeyPatch) -> LoadedModel:
    """As `tiny_model`; what is measured of it goes to a cache directory of its own."""
    monkeypatch.setenv("SATCHEL_CACHE", str(cache_home))
    return tiny_model


def behind_the_tokenizer(smollm: LoadedModel, model: nn.Module) -> LoadedModel:
    fingerprint = replace(smollm.fingerprint, weights="laboratory-tiny")
    return replace(smollm, name="tiny", model=model, fingerprint=fingerprint)


# -- texts -------------------------------------------------------------------------------------------


def test_every_text_has_the_tokens_asked_for(smollm: LoadedModel) -> None:
    for name in ("pydoc", "prose", "code", "chinese", "chat"):
        assert len(texts.token_ids(smollm, name, 2048)) == 2048


def test_a_short_text_is_not_repeated(smollm: LoadedModel) -> None:
    found = texts.token_ids(smollm, "prose", 100_000)
    assert 2048 < len(found) < 4096
    assert smollm.tokenizer.decode(found).startswith("The Ferry at Oldmarsh")


def test_the_chat_is_in_the_models_own_template(smollm: LoadedModel) -> None:
    said = smollm.tokenizer.decode(texts.token_ids(smollm, "chat", 100_000))
    assert said.count("<|im_start|>assistant") == 10  # nine answers, and where the next begins
    assert "```python\nimport csv" in said


def test_a_text_that_is_not_here_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "GPL", Path("/nowhere/GPL-3"))
    assert texts.available_texts() == ["pydoc", "prose", "code", "chinese", "chat"]
    with pytest.raises(UsageError, match="/nowhere/GPL-3 is not there"):
        texts.check_text_names(["pydoc", "gpl"])
    with pytest.raises(UsageError, match="no text is called 'klingon'"):
        texts.check_text_names(["klingon"])


# -- caches ------------------------------------------------------------------------------------------


def test_a_cache_is_made_by_its_name(tiny: LoadedModel) -> None:
    found = caches_by_name(tiny, ["mlx-lm 4", "turbo3", "exact"])
    bits = [(cache.bits, cache.group_size) for cache in found["mlx-lm 4"].make()]
    assert bits == [(4, 64), (4, 64)]
    assert [cache.profile.asked for cache in found["turbo3"].make()] == ["turbo3", "turbo3"]
    assert found["turbo3"].state is not None
    assert found["mlx-lm 4"].state is None


@pytest.mark.parametrize(
    ("name", "reason"), [("mlx-lm 5", "mlx-lm has no cache of '5' bits"), ("turbo9", "no KV profile")]
)
def test_an_unknown_cache_is_named(tiny: LoadedModel, name: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        caches_by_name(tiny, ["turbo4", name])


def test_a_profile_that_the_model_cannot_use_is_refused(tiny: LoadedModel) -> None:
    other = replace(tiny, model=tiny_models.tiny("deepseek_v3"))  # latent attention
    assert list(caches_by_name(other, ["exact", "mlx-lm 4"])) == ["exact", "mlx-lm 4"]
    with pytest.raises(UsageError, match=r"^turbo4 cannot be measured: this model"):
        caches_by_name(other, ["turbo4"])


def test_a_codec_that_does_not_fit_the_heads_is_refused_at_once(tiny: LoadedModel) -> None:
    other = replace(tiny, model=tiny_llama(head_dim=72))
    with pytest.raises(UsageError, match=r"^polar does not fit this model: head_dim is 72: "):
        caches_by_name(other, ["polar"])


def test_held_arrays_are_found_once_wherever_they_are() -> None:
    class Slotted:
        __slots__ = ("inner",)

    shared, deep = mx.zeros(3), mx.zeros(5)
    holder = Slotted()
    holder.inner = {"a": [shared, (deep, "text", None)], "b": shared}
    assert sorted(array.size for array in held_arrays([holder, shared])) == [3, 5]
    assert list(held_arrays([tiny_llama(), lambda: shared])) == []  # a model is no cache


# -- quality -----------------------------------------------------------------------------------------


def test_figures_of_distributions_that_are_known() -> None:
    with np.errstate(divide="ignore"):
        exact_log = np.log(np.array([[0.5, 0.25, 0.25], [0.8, 0.1, 0.1]], np.float32))
        other_log = np.log(np.array([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1]], np.float32))
    found = compare(exact_log, [other_log[:1], other_log[1:]], [1])
    kl = 0.7 * math.log(8)  # of the second row; the first is equal
    assert found.kl_mean == pytest.approx(kl / 2, abs=1e-6)
    assert found.kl_p99 == pytest.approx(0.99 * kl, abs=1e-6)
    assert found.top_1 == 0.5
    assert found.perplexity_ratio == 1.0  # the one known target is as likely in both
    likelier = compare(exact_log[1:], [other_log[1:]], [0])
    assert likelier.perplexity_ratio == pytest.approx(8, rel=1e-5)


def test_the_exact_cache_differs_from_itself_in_nothing(tiny: LoadedModel) -> None:
    reference = Reference.of(tiny, "ids", IDS[:256], chunk=16)
    assert reference.log_probs.shape == (64, tiny.args.vocab_size)
    assert np.exp(reference.log_probs).sum(-1) == pytest.approx(1, abs=1e-4)
    assert quality(tiny, exact(tiny), reference) == QualityRow("exact", "ids", 256, 0.0, 0.0, 1.0, 1.0)


def test_all_reading_is_inside_the_candidates_attention(tiny: LoadedModel) -> None:
    inside: list[bool] = []

    @contextmanager
    def attention():
        inside.append(True)
        try:
            yield
        finally:
            inside.append(False)

    class Watched(QuantizedKVCache):
        def update_and_fetch(self, keys, values):
            assert inside[-1:] == [True]
            return super().update_and_fetch(keys, values)

    peer = Candidate("peer", lambda: [Watched(64, 8) for _ in range(2)], attention)
    reference = Reference.of(tiny, "ids", IDS[:256], chunk=32)
    row = quality(tiny, peer, reference)
    assert inside == [True, False]
    assert 0 < row.kl_mean < 0.1
    agreement(tiny, peer, "ids", IDS[:32], [96_000] * 4)  # stops at the first token
    assert inside == [True, False] * 2


def test_greedy_tokens_agree_up_to_the_first_other(tiny: LoadedModel) -> None:
    expected = list(greedy(tiny, exact(tiny), IDS[:40], 6))
    assert agreement(tiny, exact(tiny), "ids", IDS[:40], expected).agreed == 6
    other = [*expected[:4], expected[4] + 1, expected[5]]
    row = agreement(tiny, exact(tiny), "ids", IDS[:40], other)
    assert (row.agreed, row.of, row.tokens) == (4, 6, 40)


# -- needles -----------------------------------------------------------------------------------------


def test_a_haystack_holds_each_fact_once_in_the_order_of_depths(smollm: LoadedModel) -> None:
    hay = needle.haystack(smollm, 1024)
    assert hay.tokens == 1024
    text = smollm.tokenizer.decode(hay.token_ids)
    places = [text.index(f"Remember: {name} = {number}.") for name, number in needle.FACTS.items()]
    assert places == sorted(places)
    assert text.count("Remember: ") == 12
    start, stop = hay.answers["attic"]
    assert smollm.tokenizer.decode(hay.questions[start:stop]) == " 6240"


def test_questions_at_once_and_one_by_one_find_the_same(tiny: LoadedModel) -> None:
    hay = needle.haystack(tiny, 512)
    one_by_one, at_once = (needle.retrieve(tiny, exact(tiny), hay, chunk) for chunk in (1, 200))
    assert one_by_one.retrieved == at_once.retrieved
    assert one_by_one.log_probs == pytest.approx(at_once.log_probs, abs=1e-3)
    assert set(one_by_one.log_probs) == set(needle.FACTS)


def test_what_was_said_is_retrieved_and_what_was_not_is_not(smollm: LoadedModel) -> None:
    hay = needle.haystack(smollm, 512)
    by_exact = needle.retrieve(smollm, exact(smollm), hay, 200)
    row = needle.needle_row("exact", hay, by_exact, by_exact)
    assert row.retrieved == row.exact_retrieved >= 0.9
    assert len(row.depths) == 10
    elsewhere = replace(hay, token_ids=texts.token_ids(smollm, "prose", 64))
    lost = needle.retrieve(smollm, exact(smollm), elsewhere, 200)
    row = needle.needle_row("lost", elsewhere, lost, by_exact)
    assert (row.retrieved, row.depths) == (0.0, "----------")


# -- sizes -------------------------------------------------------------------------------------------


def test_bits_held_and_stored(tiny: LoadedModel) -> None:
    source = keys_and_values(tiny, IDS)
    assert source.elements == 512 * 2 * 2 * 2 * 64  # tokens, layers, heads, keys and values, head size
    named = caches_by_name(tiny, ["mlx-lm 4", "mlx-lm 8", "turbo4", "exact"])
    rows = {name: storage(candidate, source) for name, candidate in named.items()}
    assert rows["exact"].bits_held == 16
    assert rows["mlx-lm 4"].bits_held == 4.5
    assert rows["mlx-lm 8"].bits_stored == pytest.approx(8.5, rel=0.03)  # with the file's header
    # 192 tokens are exact; codes with scales take about 4.5 bits. A token has 512 coordinates, over which the
    # table of cos and sin is spread, 1,024 x 64 numbers of 32 bits. Means and signs are less than 1 %.
    bits = 4.5 * 320 + 16 * 192 + 32 * 1024 * 64 / 512
    assert rows["turbo4"].bits_held == pytest.approx(bits / 512, rel=0.02)
    assert rows["turbo4"].stored_bytes < rows["turbo4"].held_bytes
    assert rows["turbo4"].bits_stored == 8 * rows["turbo4"].stored_bytes / source.elements


def test_a_cache_that_nobody_stores_has_no_stored_bits(tiny: LoadedModel) -> None:
    class Subclass(QuantizedKVCache):
        """mlx-lm looks up a saved cache's class by name among its own."""

    class Other:
        def update_and_fetch(self, keys, values):
            self.x = mx.concatenate([keys, values], axis=2)

    source = keys_and_values(tiny, IDS[:256])
    row = storage(Candidate("other", lambda: [Other(), Other()]), source)
    assert row.bits_stored is None
    assert row.bits_held == 16
    assert storage(Candidate("sub", lambda: [Subclass(64, 8), Subclass(64, 8)]), source).bits_stored is None


def test_bits_of_the_codes_in_a_block() -> None:
    state = KVFactory(tiny_llama(layers=3), mx.float16).new(get_profile("k3v2,raised=1"))
    for cache in state.caches:
        x = mx.random.normal((1, 2, 512, 64)).astype(mx.float16)
        cache.update_and_fetch(x, x)
        cache.move_to_body()
    part = export_block(state, 0, 256)
    assert part.meta["groups"] == [[0, 2], [1]]
    assert storage_bench.code_bits(state, part) == {
        "g0.k.codes": 3,
        "g0.v.codes": 2,
        "g1.k.codes": 4,
        "g1.v.codes": 2,
    }
    words = np.array([0xE38C78E3, 0x78E38C78, 0x8C78E38C], np.uint32)
    assert storage_bench.levels(words, 3).tolist() == [3, 4, 3, 4, 7, 0, 3, 4] * 4


# -- speed -------------------------------------------------------------------------------------------


def test_repeated_tokens_come_over_and_over(tiny: LoadedModel) -> None:
    source = keys_and_values(tiny, IDS[:300])
    repeated = source.repeated(700, mx.float32)
    assert repeated.token_ids == [IDS[t % 300] for t in range(700)]
    assert list(repeated.layers) == [0, 1]
    turns = np.arange(700) % 300
    for index, pair in repeated.layers.items():
        for long, short in zip(pair, source.layers[index], strict=True):
            assert (long.dtype, short.dtype) == (mx.float32, mx.float16)
            np.testing.assert_array_equal(np.array(long), np.array(short)[:, :, turns].astype(np.float32))


def test_filled_caches_hold_all_tokens(tiny: LoadedModel) -> None:
    source = keys_and_values(tiny, IDS[:300]).repeated(3000, mx.float16)  # in two steps
    filled = {
        name: fill(candidate.make(), source)
        for name, candidate in caches_by_name(tiny, ["exact", "mlx-lm 4", "turbo4"]).items()
    }
    assert {name: [cache.offset for cache in caches.values()] for name, caches in filled.items()} == {
        "exact": [3000, 3000],
        "mlx-lm 4": [3000, 3000],
        "turbo4": [3000, 3000],
    }
    turbo4 = filled["turbo4"][0]
    assert (turbo4.sink_tokens, turbo4.body_tokens, turbo4.exact_tokens) == (4, 2816, 184)
    newest = source.layers[0][1][:, :, -180:]
    assert mx.array_equal(turbo4.values[:, :, -180:], newest).item()


def test_speed_has_a_row_for_each_cache(tiny: LoadedModel) -> None:
    named = caches_by_name(tiny, ["exact", "mlx-lm 4", "turbo4"])
    rows = speed(tiny, list(named.values()), IDS[:300], keys_and_values(tiny, IDS[:300]), 700)
    assert [row.cache for row in rows] == ["exact", "mlx-lm 4", "turbo4"]
    assert {(row.tokens, row.prefill_tokens) for row in rows} == {(700, 300)}
    by_exact, mlx_lm, turbo4 = rows
    assert (by_exact.decode_x_exact, by_exact.prefill_x_exact, by_exact.encode_melements_s) == (1, 1, None)
    assert mlx_lm.decode_x_mlx_lm_4 == 1
    for row in (mlx_lm, turbo4):
        assert min(row.encode_melements_s, row.decode_melements_s, row.encode_share) > 0


# -- the whole ---------------------------------------------------------------------------------------


def test_every_part_runs_and_counts_its_steps(tiny: LoadedModel) -> None:
    plan = Plan(["prose"], tokens=512, chunk=64)
    events = list(run(tiny, caches_by_name(tiny, ["turbo2"]), plan))
    steps = [event for event in events if isinstance(event, Step)]
    assert [step.number for step in steps] == list(range(1, 10))
    assert {step.total for step in steps} == {9}
    report = Report("tiny", "cpu", 512, 64, [event for event in events if not isinstance(event, Step)])
    parts = report.as_dict()
    assert [len(parts[name]) for name in ("quality", "needle", "greedy", "speed", "storage")] == [
        1,
        1,
        1,
        3,
        1,
    ]
    assert parts["quality"][0]["tokens"] == 512
    out = io.StringIO()
    show(report, out)
    shown = out.getvalue()
    assert "Facts retrieved, by depth: tiny on cpu" in shown
    assert shown.count("turbo2") == 5
    assert "mlx-lm 4" in shown  # whole, also in the widest table
    assert "prefilled" in shown
    assert max(map(len, shown.splitlines())) <= 120


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        ({"parts": ["speeed"]}, "nothing called 'speeed' is measured"),
        ({"tokens": 300}, "300 tokens are too few; it takes 512 at least"),
        ({"tokens": 255, "parts": ["quality"]}, "255 tokens are too few; it takes 256 at least"),
        ({"chunk": 0}, "chunks of 0 tokens cannot be"),
    ],
)
def test_a_plan_that_cannot_be(plan: dict, reason: str) -> None:
    with pytest.raises(UsageError) as caught:
        Plan(["pydoc"], **plan)
    assert caught.value.one_line().startswith(reason)


def rows() -> list:
    found: list = [
        QualityRow("turbo4", text, 512, kl, kl, 1.0, 1.0) for text, kl in (("a", 0.01), ("b", 0.03))
    ]
    found.append(QualityRow("exact", "a", 512, 0.0, 0.0, 1.0, 1.0))
    found.append(QualityRow("broken", "a", 512, math.nan, math.nan, 0.0, math.inf))
    sizes = {"turbo4": 5.0, "exact": 16.0, "broken": 4.0}
    return found + [StorageRow(name, 512, bits, None, 1, None) for name, bits in sizes.items()]


def test_figures_that_are_no_numbers_are_null_in_json(tmp_path: Path) -> None:
    write_json([Report("m", "cpu", 512, 1, rows())], tmp_path / "out.json")
    (model,) = json.loads((tmp_path / "out.json").read_text())["models"]
    assert model["quality"][0]["kl_mean"] == 0.01
    assert model["quality"][3]["perplexity_ratio"] is None
    assert model["storage"][0]["bits_held"] == 5.0
    assert "speed" not in model


def test_json_says_what_measured_and_takes_the_place_of_older_figures(tmp_path: Path) -> None:
    kept, link = tmp_path / "kept.json", tmp_path / "newest.json"
    kept.write_text("old")
    link.symlink_to(kept)
    write_json([Report("m", "cpu", 512, 1, rows())], link)
    versions = json.loads(kept.read_text())["versions"]
    assert list(versions) == ["python", "satchel", "mlx", "mlx-lm"]
    assert versions["python"] == ".".join(map(str, sys.version_info[:3]))
    assert link.is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["kept.json", "newest.json"]


def test_points_of_the_plot() -> None:
    (turbo4,) = points(Report("m", "cpu", 512, 1, rows()))  # zero and no number have no logarithm
    assert (turbo4.cache, turbo4.bits, turbo4.low, turbo4.high) == ("turbo4", 5.0, 0.01, 0.03)
    assert turbo4.kl == pytest.approx(0.02)


def test_the_title_has_the_tokens_that_were_read() -> None:
    report = Report("m", "cpu", 4096, 1, rows())
    assert title(report) == "m, 512 tokens: a, b"
    report.rows.append(QualityRow("turbo4", "c", 4096, 0.1, 0.1, 1.0, 1.0))
    assert title(report) == "m, 512 to 4,096 tokens: a, b, c"


def test_many_families_look_different() -> None:
    assert len({style(number) for number in range(56)}) == 56


@pytest.mark.skipif(not has_matplotlib, reason="matplotlib is not installed")
def test_the_plot_is_a_png(tmp_path: Path) -> None:
    report = Report("m", "cpu", 512, 1, rows())
    write_plot([report, report], tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UsageError, match="nothing to plot"):
        write_plot([Report("m", "cpu", 512, 1, rows()[:2])], tmp_path / "plot.png")


def test_a_plot_that_cannot_be_drawn_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"'plot\.pdf' is no PNG file"):
        check_plot(Path("plot.pdf"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError) as caught:
        check_plot(Path("plot.png"))
    assert caught.value.one_line() == "the plot needs matplotlib; `pip install matplotlib` brings it"


# -- the command -------------------------------------------------------------------------------------


@pytest.fixture
def loaded(
    tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[tuple[str, weakref.ref[nn.Module]]]]:
    """The models that were loaded, in turn; none may be there any more when the next one comes."""
    found: list[tuple[str, weakref.ref[nn.Module]]] = []

    def load(name: str, progress: object) -> LoadedModel:
        assert [earlier for earlier, model in found if model() is not None] == []
        model = tiny_llama(vocabulary=tiny.args.vocab_size)
        found.append((name, weakref.ref(model)))
        return replace(tiny, name=name, model=model)

    monkeypatch.setattr(terminal_bench, "load_model", load)
    return found


def test_models_come_one_after_the_other_and_may_have_commas(
    loaded: list[tuple[str, weakref.ref[nn.Module]]], capsys: pytest.CaptureFixture[str]
) -> None:
    request = Request(
        models=["a,b.gguf", "c", "a,b.gguf"],
        caches=["turbo4,window=64,mlx-lm 8", "turbo4,window=64"],
        texts=["prose"],
        only=["quality,storage"],
        tokens=256,
        chunk=64,
    )
    reports = bench_kv(request, out=io.StringIO())
    assert [name for name, _ in loaded] == ["a,b.gguf", "c"]
    for report in reports:
        assert [row.cache for row in report.part("quality")] == ["turbo4,window=64", "mlx-lm 8"]
        assert len(report.part("storage")) == 2
    assert capsys.readouterr().err.startswith("1/6 quality: exact on prose\n")


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (["turbo4,window=256"], ["turbo4,window=256"]),
        (["turbo4,window=256,turbo3, exact"], ["turbo4,window=256", "turbo3", "exact"]),
        (["turbo4, window=256,sink=8", "turbo4"], ["turbo4, window=256,sink=8", "turbo4"]),
        (["a,b", "b,,c ", ""], ["a", "b", "c"]),
    ],
)
def test_names_are_listed_with_commas_or_one_by_one(given: list[str], names: list[str]) -> None:
    assert terminal_bench._listed(given) == names


@pytest.mark.skipif(not has_matplotlib, reason="matplotlib is not installed")
def test_a_plot_measures_what_it_takes() -> None:
    plan, _ = terminal_bench._checked(Request(only=["greedy"], plot=Path("plot.png")))
    assert plan.parts == ["quality", "greedy", "storage"]
    plan, _ = terminal_bench._checked(Request(only=["greedy"]))
    assert plan.parts == ["greedy"]


@pytest.mark.parametrize("shown", [True, False])
def test_what_there_is_at_an_interrupt_is_kept_and_shown(
    loaded: object, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shown: bool
) -> None:
    def interrupted(*args: object) -> Iterator[object]:
        yield Step(1, 2, "quality: turbo4 on a")
        yield rows()[0]
        raise KeyboardInterrupt

    monkeypatch.setattr(terminal_bench, "run", interrupted)
    out = io.StringIO()
    if not shown:
        out.close()  # as a pipe whose reader has gone
    path = tmp_path / "out.json"
    with pytest.raises(KeyboardInterrupt if shown else ValueError):
        bench_kv(Request(json=path), out=out)
    (model,) = json.loads(path.read_text())["models"]
    assert [(row["cache"], row["text"]) for row in model["quality"]] == [("turbo4", "a")]
    assert not shown or "turbo4" in out.getvalue()


def bench(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "satchel", "bench", "kv", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, env=os.environ, check=False)


@pytest.mark.slow
def test_the_command_measures_the_embedded_model(smollm: LoadedModel, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    ran = bench(
        *("--tokens", "256", "--chunk", "16", "--caches", "turbo4", "--texts", "pydoc"),
        *("--only", "quality", "--json", str(out)),
    )
    assert ran.returncode == 0, ran.stderr
    assert "Quality against the exact cache: embedded on " in ran.stdout
    assert ran.stderr.splitlines() == ["1/2 quality: exact on pydoc", "2/2 quality: turbo4 on pydoc"]
    (model,) = json.loads(out.read_text())["models"]
    (row,) = model["quality"]
    assert (row["cache"], row["text"], row["tokens"]) == ("turbo4", "pydoc", 256)
    assert 0 < row["kl_mean"] < 0.003
    assert row["top_1"] >= 0.95
    assert list(model) == ["model", "device", "tokens", "chunk", "quality"]


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (["--caches", "turbo4,turbo9"], "no KV profile is called 'turbo9'"),
        (["--caches", "mlx-lm 5"], "mlx-lm has no cache of '5' bits; `mlx-lm N` takes 2, 3, 4, 6, 8"),
        (["--texts", "poem"], "no text is called 'poem'; there are pydoc, "),
        (["--only", "speeed"], "nothing called 'speeed' is measured; there are quality, "),
        (["--tokens", "100"], "100 tokens are too few; it takes 512 at least"),
        (["--plot", "plot.pdf"], "the plot 'plot.pdf' is no PNG file; name it something.png"),
        (["--json", "/nowhere/x.json"], "there is no directory '/nowhere'"),
        (["--json", "/"], "'/' is not a file"),
    ],
)
def test_what_cannot_be_is_one_line_and_exit_code_2(args: list[str], line: str) -> None:
    ran = bench(*args)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith(f"satchel: {line}")
    assert ran.stderr.count("\n") == 1
