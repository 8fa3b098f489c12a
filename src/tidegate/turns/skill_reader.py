"""The results of the `skill` tool: a list of skills, one skill, or one of its files.

An agent can read only its own skills, whatever the call's arguments. The gateway's text comes first and the file's text
last, so no file can imitate the gateway. Every failure is a `ToolFailed` with a one-sentence message.
"""

from tidegate.errors import ToolFailed
from tidegate.skills import InvalidSkill, SkillEntry, SkillFile, SkillLibrary, listing_line
from tidegate.tools import ToolContext
from tidegate.workspaces.files import printable, shown

NO_SKILLS = "There are no skills here."
LONGEST_NAME = 100
"""Number of characters of an unknown name that are compared with the known names, which have at most 64 characters."""
READ_HERE = "Your commands cannot see its folder: read its files with this tool."


class SkillReader:
    def __init__(self, library: SkillLibrary) -> None:
        self._library = library

    async def read(self, ctx: ToolContext, name: str, file: str) -> str:
        if not name:
            return await self._list(ctx, file)
        entry = await self._find(ctx, name)
        return await self._file(ctx, entry, file) if file else await self._skill(ctx, entry)

    async def _list(self, ctx: ToolContext, file: str) -> str:
        if file:
            raise ToolFailed("skill: specify the skill's name as well.")
        entries = (await self._library.skill_set(ctx.agent, ctx.principal)).entries
        return "\n".join(map(listing_line, entries)) or NO_SKILLS

    async def _find(self, ctx: ToolContext, name: str) -> SkillEntry:
        skill_set = await self._library.skill_set(ctx.agent, ctx.principal)
        if (entry := skill_set.get(name)) is not None:
            return entry
        if not skill_set.entries:
            raise ToolFailed(f"skill: {NO_SKILLS}")
        import difflib  # needed only for unknown names

        near = difflib.get_close_matches(name[:LONGEST_NAME], [entry.name for entry in skill_set.entries], n=1)
        hint = f"did you mean {near[0]}?" if near else "call it without a name to list all skills."
        raise ToolFailed(f"skill: there is no skill {shown(name)}; {hint}")

    async def _skill(self, ctx: ToolContext, entry: SkillEntry) -> str:
        try:
            found = await self._library.open(entry, ctx.principal)
        except InvalidSkill as error:
            raise ToolFailed(f"skill: {entry.name} cannot be used: {error.message}") from None
        lines = [f"Skill {entry.name}, {_origin(entry)}."]
        if found.skill.compatibility:
            lines.append(f"Its requirements: {printable(found.skill.compatibility)}")
        if found.files:
            more = ", and more that are not listed" if found.more else ""
            lines.append(f"Its other files: {', '.join(map(printable, found.files))}{more}.")
            lines.append(f"Your commands see its folder as {found.seen}." if found.seen else READ_HERE)
        lines.append("The text of its SKILL.md follows.")
        return "\n".join(lines) + f"\n\n{found.text}"

    async def _file(self, ctx: ToolContext, entry: SkillEntry, path: str) -> str:
        try:
            found = await self._library.file(entry, path, ctx.principal)
        except InvalidSkill as error:
            raise ToolFailed(f"skill: {shown(path)} of {entry.name} may not be read: {error.message}") from None
        if found is None:
            raise ToolFailed(f"skill: {entry.name} has no file {shown(path)}; omit the file to list the skill's files.")
        if found.text is None:
            where = f"for your commands it is {shown(found.seen)}" if found.seen else "your commands do not see it"
            raise ToolFailed(f"skill: {shown(path)} of {entry.name} is binary ({found.size:,} bytes); {where}.")
        return f"File {printable(path)} of the skill {entry.name}, {_extent(found)}:\n\n{found.text}"


def _origin(entry: SkillEntry) -> str:
    return "of the project" if entry.place.origin == "project" else "of the gateway's owner"


def _extent(page: SkillFile) -> str:
    if page.complete:
        return f"{page.size:,} bytes"
    assert page.text is not None
    return f"its first {len(page.text.encode()):,} of {page.size:,} bytes"
