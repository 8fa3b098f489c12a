"""A request that a strict provider would not take, and why; each format says it in its own words' shape."""


class Refusal(Exception):
    def __init__(self, message: str, *, param: str | None = None, code: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.message, self.param, self.code, self.status = message, param, code, status
