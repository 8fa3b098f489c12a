"""The list of agents, in OpenAI's format for models. A key sees only the agents that it may use."""

from typing import Literal

import msgspec

from tidegate.errors import NotFound
from tidegate.web.app.endpoint import Endpoint, Request
from tidegate.web.app.http_response import HttpResponse, json_response


class ModelView(msgspec.Struct, frozen=True):
    """An agent, in OpenAI's format for models."""

    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "tidegate"


class ModelsAnswer(msgspec.Struct, frozen=True):
    data: list[ModelView]
    object: Literal["list"] = "list"


class ModelsApi:
    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                method="GET", path="/v1/models", handler=self.models, summary="List the agents that you may use",
                responses={200: ModelsAnswer},
            ),
            Endpoint(
                method="GET", path="/v1/models/{id:path}", handler=self.model, summary="Show an agent",
                responses={200: ModelView}, refusals=(404,),
            ),
        ]  # fmt: skip

    async def models(self, request: Request) -> HttpResponse:
        return json_response(ModelsAnswer([ModelView(id=name) for name in request.caller.agents]))

    async def model(self, request: Request) -> HttpResponse:
        name = request.path["id"]
        if name not in request.caller.agents:
            raise NotFound(
                f"There is no model {name[:100]!r}; this key may use: {', '.join(request.caller.agents) or 'none'}.",
                code="model_not_found",
                param="model",
            )
        return json_response(ModelView(id=name))
