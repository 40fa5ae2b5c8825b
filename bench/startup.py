"""Seconds from a command to the chat's prompt, to its first answer, and to the first token of `ask`.

Each beside what it cannot do without: loading the model, and the engine's own first token. Every process is
started anew, and all of them in turn.
"""

from __future__ import annotations

from common import arguments, show  # first: it loads OpenBLAS ahead of MLX

# isort: split

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import pexpect

PATIENCE_S = 600
QUESTION = "Hello"

LOAD = """
import sys
from satchel.engine.model import load_model
model = load_model(sys.argv[1])
"""

# The model, the template and one token: no store, no sync, no rendering.
ENGINE = f"""{LOAD}
import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache
said = [dict(role="user", content={QUESTION!r})]
ids = model.tokenizer.apply_chat_template(said, add_generation_prompt=True)
logits = model.model(mx.array([ids]), cache=make_prompt_cache(model.model))
print(model.tokenizer.decode([logits[0, -1].argmax().item()]), flush=True)
"""

# The prompt behind the model, as a talk would begin if nothing were loaded behind the prompt.
LOADED_FIRST = """
import sys
from satchel.cli.agent import open_desk
from satchel.cli.options import chosen_settings, load_manager
settings = chosen_settings(no_save=True, model=sys.argv[1], max_tokens=1)
manager = load_manager(settings)
desk = open_desk(settings, manager, manager.new())
from satchel.terminal.chat import Chat
from satchel.terminal.completion import TalkCompleter
from satchel.terminal.prompt import MessagePrompt
from satchel.terminal.render import Renderer
Chat(desk, Renderer()).with_person(MessagePrompt(None, TalkCompleter(manager.store, settings)))
"""


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    python, model = sys.executable, options.model
    chat = [python, "-m", "satchel", "chat", "--no-save", "--max-tokens", "1", "--model", model]
    before = [python, "-c", LOADED_FIRST, model]
    ask = [python, "-m", "satchel", "ask", QUESTION, "--max-tokens", "1", "--model", model]
    with tempfile.TemporaryDirectory() as home:
        os.environ |= {"SATCHEL_HOME": home, "SATCHEL_AGENT_ROUTING": "false", "TERM": "xterm"}
        measured: dict[str, Callable[[], tuple[float, float]]] = {
            "loading the model alone": lambda: _run([python, "-c", LOAD, model]),
            "chat": lambda: _talk(chat),
            "chat, the model first": lambda: _talk(before),
            "the engine's first token": lambda: _run([python, "-c", ENGINE, model]),
            "ask": lambda: _run(ask),
        }
        for measure in measured.values():  # from warm files, and with all that is made once
            measure()
        rounds = [[measure() for measure in measured.values()] for _ in range(options.rounds)]
    medians = [
        [statistics.median(times) for times in zip(*each, strict=True)] for each in zip(*rounds, strict=True)
    ]
    load_s, engine_s = medians[0][1], medians[3][1]
    rows = []
    for name, (first_s, answer_s) in zip(measured, medians, strict=True):
        base = engine_s if name in ("ask", "the engine's first token") else load_s
        rows.append([name, first_s, first_s / base, answer_s, answer_s / base])
    columns = ["", "usable s", "of the base", "first token s", "of the base"]
    title = f"From a command to a prompt with a key echoed, or to a token; median of {options.rounds}"
    show(title, columns, rows, options.json)


def _run(command: list[str]) -> tuple[float, float]:
    """Seconds until the first byte comes, or the end, twice: nothing can be used before."""
    start = time.perf_counter()
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        seconds = time.perf_counter() - start
        process.stdout.read()
    if process.returncode:
        raise RuntimeError(f"{command} ended with {process.returncode}")
    return seconds, seconds


def _talk(command: list[str]) -> tuple[float, float]:
    """Seconds until the prompt has shown a key, and until an answer of one token is over."""
    start = time.perf_counter()
    child = pexpect.spawn(command[0], command[1:], dimensions=(24, 80), timeout=PATIENCE_S)
    child.expect("> ?")
    child.send("~")  # which nothing else shows
    child.expect("~")
    usable_s = time.perf_counter() - start
    child.send(f"\x7f{QUESTION}\r")
    child.expect("tokens at")
    answer_s = time.perf_counter() - start
    child.send("\x04")
    child.expect(pexpect.EOF)
    child.close()
    return usable_s, answer_s


if __name__ == "__main__":
    main()
