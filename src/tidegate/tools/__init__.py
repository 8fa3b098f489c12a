"""Tools: the actions that agents can perform, as immutable values.

The tools offered to a model have unique names and a fixed order. No caller can change another caller's tools. A tool
gets its caller's identity only from its context argument. Code that shows a tool's output truncates it with
`bound_text` and reports the omission.

`builtin/` contains the toolsets that come with the gateway; all others are plug-ins (`tidegate.plugins`).
"""

from tidegate.spool import bound_text
from tidegate.tools.services import Delegates, Notes, Recall, Skills, ToolServices
from tidegate.tools.tool import DEFAULT_OWNER, Effect, Result, Tool, ToolContext, tool
from tidegate.tools.toolset import Toolset
from tidegate.tools.toolsets import BUILTIN, Toolsets, builtin_toolsets

__all__ = [
    "BUILTIN",
    "DEFAULT_OWNER",
    "Delegates",
    "Effect",
    "Notes",
    "Recall",
    "Result",
    "Skills",
    "Tool",
    "ToolContext",
    "ToolServices",
    "Toolset",
    "Toolsets",
    "bound_text",
    "builtin_toolsets",
    "tool",
]
