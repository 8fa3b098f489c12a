"""What both of OpenAI's formats say in detail of the tokens they counted: whole numbers, though relays write `12.0`."""

import msgspec


class InputDetails(msgspec.Struct, gc=False):
    cached_tokens: float | None = None
    cache_write_tokens: float | None = None


class OutputDetails(msgspec.Struct, gc=False):
    reasoning_tokens: float | None = None
