"""Dispatch of slash commands to their handlers.

Commands are defined in the other modules of this package, in each module's `COMMANDS`. A command is one value with a
name, aliases, help, arguments, cost, availability, permission and handler. Names and aliases are unique. `/help`, the
completion on the chat page and the documentation are generated from these values. An unknown command is never sent to a
model; the reply suggests the closest match.
"""

from collections.abc import Awaitable, Callable, Iterable

from tidegate.errors import Misconfigured, Refused
from tidegate.security import Principal
from tidegate.sessions import Sessions
from tidegate.values import Frozen

LONGEST_NAME = 100
"""Only this many characters of an unknown command are compared and quoted, since a long message may start with /
too."""


class CommandContext(Frozen, frozen=True):
    """A command's context: the caller, their channel and their conversation."""

    service: Sessions
    principal: Principal
    channel: str
    session: str | None
    agent: str | None

    def here(self) -> str:
        if self.session is None:
            raise Refused("There is no conversation yet; send a message first.", code="no_session")
        return self.session


class CommandReply(Frozen, frozen=True):
    """The reply to a command. `session` is the user's current conversation after the command, or None if the next
    message starts a new one. `turn` is the turn that the command started or continued, if any."""

    text: str
    session: str | None = None
    turn: str | None = None


Handler = Callable[[CommandContext, str], Awaitable[CommandReply]]


class CommandInfo(Frozen, frozen=True, omit_defaults=False):
    """A command's description for clients."""

    name: str
    aliases: tuple[str, ...]
    arguments: str
    help: str
    cost: str
    mid_turn: str
    owner_only: bool


class SlashCommand(Frozen, frozen=True):
    name: str
    help: str
    handler: Handler
    aliases: tuple[str, ...] = ()
    arguments: str = ""
    cost: str = ""
    """What the command costs the conversation, if anything; shown in the help and after the command."""
    mid_turn: str = "works immediately"
    owner_only: bool = False

    @property
    def info(self) -> CommandInfo:
        return CommandInfo(
            name=self.name,
            aliases=self.aliases,
            arguments=self.arguments,
            help=self.help,
            cost=self.cost,
            mid_turn=self.mid_turn,
            owner_only=self.owner_only,
        )


class Commands:
    def __init__(self, service: Sessions, commands: Iterable[SlashCommand]) -> None:
        self._service = service
        self._commands: dict[str, SlashCommand] = {}
        self._ordered = (*commands, self._help())
        for command in self._ordered:
            for name in (command.name, *command.aliases):
                if name in self._commands:
                    raise Misconfigured(f"Two commands are named /{name}; rename one of them.")
                self._commands[name] = command

    def catalogue(self) -> list[CommandInfo]:
        return [command.info for command in self._ordered]

    @staticmethod
    def is_command(text: str) -> bool:
        """True if the text begins with a slash and a word. `/usr/bin` is a path, and `/ ` is plain text."""
        word = text.split(maxsplit=1)[0] if text.startswith("/") else ""
        return len(word) > 1 and word[1:].isalpha()

    async def run(
        self, line: str, *, principal: Principal, channel: str, session: str | None, agent: str | None
    ) -> CommandReply:
        word, _, rest = line.strip().removeprefix("/").partition(" ")
        command = self._commands.get(word.lower())
        if command is None:
            import difflib  # needed only for typos

            word = word if len(word) <= LONGEST_NAME else f"{word[:LONGEST_NAME]}…"
            near = difflib.get_close_matches(word.lower(), self._commands, n=1)
            hint = f"did you mean /{near[0]}?" if near else "/help lists all commands."
            raise Refused(f"There is no command /{word}; {hint}", code="unknown_command")
        if command.owner_only:
            principal.require("configure")
        context = CommandContext(
            service=self._service, principal=principal, channel=channel, session=session, agent=agent
        )
        return await command.handler(context, rest.strip())

    def _help(self) -> SlashCommand:
        async def show(context: CommandContext, name: str) -> CommandReply:
            text = self._explain(name.removeprefix("/")) if name else self._overview()
            return CommandReply(text=text, session=context.session)

        return SlashCommand(
            name="help", aliases=("h",), arguments="[COMMAND]", help="List the commands, or explain one.", handler=show
        )

    def _overview(self) -> str:
        calls = {f"/{command.name} {command.arguments}".rstrip(): command.help for command in self._ordered}
        width = max(map(len, calls)) + 2
        return "\n".join(f"{call:{width}}{text}" for call, text in calls.items())

    def _explain(self, name: str) -> str:
        command = self._commands.get(name)
        if command is None:
            raise Refused(f"There is no command /{name}; /help lists all commands.", code="unknown_command")
        also = f" (also {', '.join('/' + alias for alias in command.aliases)})" if command.aliases else ""
        lines = [
            f"/{command.name} {command.arguments}".rstrip() + also,
            command.help,
            f"During a turn: {command.mid_turn}.",
            f"Cost: {command.cost}" if command.cost else "",
        ]
        return "\n".join(line for line in lines if line)
