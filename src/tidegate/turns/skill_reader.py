"""What the tool `skill` tells: a list, a skill, or a file of one.

Guarantee: an agent is told of its own skills only, by the agent of the call and not by its arguments. What the gateway
says stands first and what a file says last, so that no text of a file can pass for the gateway's. What cannot be had is
a `ToolFailed` in one sentence.
"""

from tidegate.errors import ToolFailed
from tidegate.skills import InvalidSkill, SkillEntry, SkillFile, SkillLibrary, listing_line
from tidegate.tools import ToolContext
from tidegate.workspaces.files import printable, shown

NO_SKILLS = "There are no skills here."
LONGEST_NAME = 100
"""Characters of an unknown name that are compared with those that there are; a name has at most 64."""
READ_HERE = "Your commands do not see its folder: read its files with this tool."


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
            raise ToolFailed("skill: say the name of the skill, too.")
        entries = (await self._library.skill_set(ctx.agent, ctx.principal)).entries
        return "\n".join(map(listing_line, entries)) or NO_SKILLS

    async def _find(self, ctx: ToolContext, name: str) -> SkillEntry:
        skill_set = await self._library.skill_set(ctx.agent, ctx.principal)
        if (entry := skill_set.get(name)) is not None:
            return entry
        if not skill_set.entries:
            raise ToolFailed(f"skill: {NO_SKILLS}")
        import difflib  # only a mistake needs it

        near = difflib.get_close_matches(name[:LONGEST_NAME], [entry.name for entry in skill_set.entries], n=1)
        hint = f"did you mean {near[0]}?" if near else "without a name it lists all."
        raise ToolFailed(f"skill: there is no skill {shown(name)}; {hint}")

    async def _skill(self, ctx: ToolContext, entry: SkillEntry) -> str:
        try:
            found = await self._library.open(entry, ctx.principal)
        except InvalidSkill as error:
            raise ToolFailed(f"skill: {entry.name} cannot be used: {error.message}") from None
        told = [f"Skill {entry.name}, {_origin(entry)}."]
        if found.skill.compatibility:
            told.append(f"It says of what it needs: {printable(found.skill.compatibility)}")
        if found.files:
            more = ", and more that are not listed" if found.more else ""
            told.append(f"Other files of it: {', '.join(map(printable, found.files))}{more}.")
            told.append(f"For your commands its folder is {found.seen}." if found.seen else READ_HERE)
        told.append("What follows is the text of its SKILL.md.")
        return "\n".join(told) + f"\n\n{found.text}"

    async def _file(self, ctx: ToolContext, entry: SkillEntry, path: str) -> str:
        try:
            found = await self._library.file(entry, path, ctx.principal)
        except InvalidSkill as error:
            raise ToolFailed(f"skill: {shown(path)} of {entry.name} may not be read: {error.message}") from None
        if found is None:
            raise ToolFailed(f"skill: {entry.name} has no file {shown(path)}; without a file it lists them.")
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
