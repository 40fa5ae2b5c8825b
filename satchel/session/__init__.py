"""Conversations: they join engine and store. Nothing here knows of the terminal."""

from satchel.session.manager import Archived, SessionManager
from satchel.session.session import ContextFullError, Session

__all__ = ["Archived", "ContextFullError", "Session", "SessionManager"]
