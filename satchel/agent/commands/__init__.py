"""The slash commands of a talk. Knows nothing of how they are typed or shown."""

from satchel.agent.commands.sessions import PAGE, session_table
from satchel.agent.commands.table import COMMANDS, Command, find_command, is_command, run_command

__all__ = [
    "COMMANDS",
    "PAGE",
    "Command",
    "find_command",
    "is_command",
    "run_command",
    "session_table",
]
