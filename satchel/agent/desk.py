"""What a talk is held at: the session, and what the agent works with. Knows nothing of terminals."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from satchel.agent.user import Nobody, User
from satchel.config.settings import Settings

if TYPE_CHECKING:  # the session brings the engine; the names of the commands must not
    from satchel.agent.toolbox import Toolbox
    from satchel.session import Session, SessionManager
    from satchel.sync.background import BackgroundSync


@dataclass(slots=True)
class Desk:
    """What turns and commands work on.

    Attributes:
        session: the one being talked in; a command may put another one there.
        settings: as they are now; commands such as /auto replace them for this talk.
        routing: whether messages may become searches and commands by themselves.
        tools: the router, the search, the shell and what else the agent uses, made when first needed.
        open_manager: loads another model by name, and makes a manager of its sessions.
        sync: what syncs beside the talk, if sync is set up.
        cancel: set when the user does not want to wait any longer.
    """

    manager: SessionManager
    session: Session
    settings: Settings
    tools: Toolbox
    user: User = field(default_factory=Nobody)
    routing: bool = False
    open_manager: Callable[[Settings], SessionManager] | None = None
    sync: BackgroundSync | None = None
    cancel: threading.Event = field(default_factory=threading.Event)
