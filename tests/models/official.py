"""Validation by the types of the official packages."""

from typing import Any

from pydantic import BaseModel, TypeAdapter


def strictly(kind: TypeAdapter[Any], data: Any) -> Any:
    """Parse a value by an official type, and require that it has no fields unknown to the type."""
    found = kind.validate_python(data)
    waiting: list[Any] = [found]
    while waiting:
        one = waiting.pop()
        if isinstance(one, BaseModel):
            assert not one.model_extra, one
            waiting += [getattr(one, name) for name in type(one).model_fields]
        elif isinstance(one, list):
            waiting += one
    return found
