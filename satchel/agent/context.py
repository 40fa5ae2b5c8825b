"""Files in a model's context: found, read, and put into messages. For the rest of the agent to import."""

from satchel.agent.attached import ContextFile, known_files, split_files, with_files
from satchel.agent.collecting import Collected, collect
from satchel.agent.mentions import mentioned

__all__ = ["Collected", "ContextFile", "collect", "known_files", "mentioned", "split_files", "with_files"]
