"""The environment of a turn's tools: workspace, spool, web access and permissions.

Nothing is set up for a turn without tool calls. For any other turn, the environment is set up once, for the turn's
session and with its agent's policy. Everything that a one-shot call's tools create is removed when the call ends.

`ToolEnv` owns none of these services; a turn's context lives as long as the turn.
"""

import anyio

from tidegate.agent import ToolSetup, Turn
from tidegate.config import Config
from tidegate.engine import TakenTurn
from tidegate.spool import Spool
from tidegate.tools import ToolContext, ToolServices
from tidegate.turns.approvals import Approvals
from tidegate.turns.permissions import TurnPermissions, policies
from tidegate.workspaces import Workspaces


class ToolEnv:
    def __init__(
        self,
        config: Config,
        spool: Spool,
        questions: Approvals,
        workspaces: Workspaces,
        services: ToolServices,
    ) -> None:
        self.spool = spool
        self._questions = questions
        self._workspaces = workspaces
        self._services = services
        self._policies = policies(config)

    def setup(self, turn: Turn, taken: TakenTurn) -> ToolSetup:
        session = taken.session
        workspace = self._workspaces.of(session.id, session.agent, turn.id)
        context = ToolContext(
            session=session.id,
            principal=session.principal,
            channel=taken.turn.channel,
            agent=session.agent,
            turn=turn.id,
            workspace=workspace,
            spool=self.spool.of(session.id, turn.id, taken.turn.fence),
            services=self._services,
            depth=taken.turn.depth,
        )
        return ToolSetup(context, TurnPermissions(self._questions, self._policies, taken, workspace))

    async def remove_files(self, session: str) -> None:
        """Removes everything that a one-shot call's tools have created. After a crash, the periodic sweeps do this."""
        with anyio.CancelScope(shield=True):
            await self._workspaces.discard(session)
            await self.spool.remove(session)
