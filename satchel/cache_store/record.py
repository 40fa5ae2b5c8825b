"""The base of everything stored as JSON: frozen values, strict types, no unknown fields."""

from __future__ import annotations

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import from_json

from satchel.errors import DamagedError


class Record(BaseModel):
    """Strict, but for what JSON has not: tuples are read from arrays and times from text.

    Such fields are declared with `Field(strict=False)`; what is in a tuple stays strict.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    def stored(self) -> dict[str, Any]:
        """As JSON values. Optional fields at their default are left out, so that earlier versions read a file
        that does not use what came after them."""
        return self.model_dump(mode="json", exclude_defaults=True)

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """The record in JSON that may come from anywhere.

        Raises:
            DamagedError: not JSON, or not this record; says what is wrong first, without the input.
        """
        try:
            # Not `model_validate_json`: each of its errors holds a copy of the input, which may be hostile.
            return cls.model_validate(from_json(data))
        except ValidationError as err:
            first = err.errors(include_url=False, include_input=False)[0]
            place = ".".join(map(str, first["loc"])) or "top"
            raise DamagedError(f"its content is wrong ({place}: {first['msg']})") from err
        except ValueError as err:
            raise DamagedError(f"its content is not JSON ({err})") from err
