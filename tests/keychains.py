"""Keychains for tests, none of them the user's."""

from __future__ import annotations

from keyring.backend import KeyringBackend
from keyring.errors import KeyringLocked, PasswordDeleteError, PasswordSetError


class MemoryKeychain(KeyringBackend):
    """Keeps secrets in `kept`, by service and user."""

    priority = 1

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[tuple[str, str], str] = {}

    def get_password(self, service: str, username: str) -> str | None:
        return self.kept.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        self.kept[service, username] = password

    def delete_password(self, service: str, username: str) -> None:
        if self.kept.pop((service, username), None) is None:
            raise PasswordDeleteError("No such password!")


class LockedKeychain(MemoryKeychain):
    """Its user closes each prompt."""

    def get_password(self, service: str, username: str) -> str | None:
        raise KeyringLocked("Failed to unlock the collection!")

    def set_password(self, service: str, username: str, password: str) -> None:
        raise KeyringLocked("Failed to unlock the collection!")


class BrokenKeychain(MemoryKeychain):
    """As the macOS one is over SSH, and as careless with what it was given as a plugin may be."""

    def get_password(self, service: str, username: str) -> str | None:
        raise RuntimeError("(-25308, 'Unknown Error')")

    def set_password(self, service: str, username: str, password: str) -> None:
        raise PasswordSetError(f"Can't store {password}")
