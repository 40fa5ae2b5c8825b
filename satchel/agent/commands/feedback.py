"""Commands that keep what the user thinks of answers. Knows nothing of how it is kept."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING

from satchel.agent.commands.listing import counted
from satchel.agent.commands.paths import below
from satchel.agent.events import Event, Notice, Output

if TYPE_CHECKING:
    from satchel.agent.desk import Desk

FOLDER = "training"  # below the data directory
ENOUGH = 50  # samples, to begin to train with


def good(desk: Desk, argument: str) -> Iterator[Event]:
    yield from _kept(desk, True, argument)


def bad(desk: Desk, argument: str) -> Iterator[Event]:
    yield from _kept(desk, False, argument)


def _kept(desk: Desk, good: bool, note: str) -> Iterator[Event]:
    from satchel.agent.feedback import keep_feedback

    keep_feedback(desk.session.messages, good, note, desk.manager.model.name)
    if good or note:
        yield Notice("kept, on this machine alone; /improve makes a training set of what was kept")
    else:
        yield Notice("kept, on this machine alone; /bad with the better answer behind it can be learned from")


def improve(desk: Desk, argument: str) -> Iterator[Event]:
    from satchel.agent.feedback import write_dataset
    from satchel.config.paths import data_dir
    from satchel.exchange.prompt_caches import loadable_name

    folder = below(desk.tools.cwd, argument) if argument else data_dir() / FOLDER
    dataset = write_dataset(folder)
    train, test = counted(dataset.train, "sample"), f", {dataset.test:,} to test" if dataset.test else ""
    yield Notice(f"written to {folder}: {train} to train, {dataset.valid:,} to validate{test}")
    if dataset.train < ENOUGH:
        yield Notice(f"that is too little to train with yet: about {ENOUGH} samples are a start")
    if dataset.left_out:
        yield Notice(
            f"{counted(dataset.left_out, 'judged answer')} left out: bad without a better one, or empty"
        )
    if dataset.damaged_lines:
        yield Notice(f"{counted(dataset.damaged_lines, 'line')} of the feedback could not be read")
    model = shlex.quote(loadable_name(desk.manager.model))
    yield Output(f"mlx_lm.lora --model {model} {dataset.lora_arguments()}")
