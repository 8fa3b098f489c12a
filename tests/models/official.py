"""What the official packages' types say of something."""

from typing import Any

from pydantic import BaseModel, TypeAdapter


def strictly(kind: TypeAdapter[Any], data: Any) -> Any:
    """Parsed by an official type, with nothing in it that the type does not know."""
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
