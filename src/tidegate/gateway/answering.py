"""Which model answers for which agent, as people and programs are told. Guarantee: nothing secret is in it."""

from urllib.parse import urlsplit

from tidegate.config import Config
from tidegate.values import Frozen

DEMO = "the built-in demo model"


class AgentModel(Frozen, frozen=True, omit_defaults=False):
    agent: str
    setting: str
    """The model's name in the configuration."""
    model: str
    host: str
    demo: bool

    def __str__(self) -> str:
        if self.demo:
            return f"agent {self.agent}: {DEMO}"
        return f"agent {self.agent}: {self.model} at {self.host}"


def agent_models(config: Config) -> tuple[AgentModel, ...]:
    return tuple(_of(name, config) for name in sorted(config.agents))


def _of(name: str, config: Config) -> AgentModel:
    setting = config.agents[name].model
    settings = config.models[setting]
    if settings.api == "demo":
        return AgentModel(agent=name, setting=setting, model="demo", host="", demo=True)
    # The address was checked to hold neither user nor password.
    host = urlsplit(settings.base_url).netloc
    return AgentModel(agent=name, setting=setting, model=settings.model, host=host, demo=False)
