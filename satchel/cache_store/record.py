"""The base of everything stored as JSON: frozen values, strict types, no unknown fields."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError
from pydantic_core import from_json

from satchel.cache_store.snapshot import canonical_json
from satchel.errors import DamagedError, VersionError


def _writable(value: dict[str, Any]) -> dict[str, Any]:
    canonical_json(value)
    return value


# Values of any kind that can be written as JSON again: the parser also takes `NaN`, and `1e400` for infinity.
JsonObject = Annotated[dict[str, Any], AfterValidator(_writable)]


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
            VersionError: right but for fields that this version does not know.
        """
        try:
            # Not `model_validate_json`: each of its errors holds a copy of the input, which may be hostile.
            return cls.model_validate(from_json(data))
        except ValidationError as err:
            errors = err.errors(include_url=False, include_input=False)
            first = errors[0]
            place = ".".join(map(str, first["loc"])) or "top"
            if all(error["type"] == "extra_forbidden" for error in errors):
                raise VersionError(
                    f"it was saved by another version of Satchel ({place} is not known)"
                ) from err
            raise DamagedError(f"its content is wrong ({place}: {first['msg']})") from err
        except ValueError as err:
            raise DamagedError(f"its content is not JSON ({err})") from err
