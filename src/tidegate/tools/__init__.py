"""Tools: the actions that agents can perform, as immutable values.

Tool names are unique and in a fixed order before they reach a model. No caller can change the tools of another one. A
tool learns the identity of its caller only from its context argument. Code that shows a tool's output bounds it
(`bound_text`) and reports the omission.

`builtin/` holds the toolsets that come with the gateway; others are plug-ins (`tidegate.plugins`).
"""

from tidegate.spool import bound_text
from tidegate.tools.registry import BUILTIN, ToolRegistry, builtin_toolsets
from tidegate.tools.services import Delegates, Notes, Recall, Skills, ToolServices
from tidegate.tools.tool import Effect, Result, Tool, ToolContext, tool
from tidegate.tools.toolset import Toolset, fit_name

__all__ = [
    "BUILTIN",
    "Delegates",
    "Effect",
    "Notes",
    "Recall",
    "Result",
    "Skills",
    "Tool",
    "ToolContext",
    "ToolRegistry",
    "ToolServices",
    "Toolset",
    "bound_text",
    "builtin_toolsets",
    "fit_name",
    "tool",
]
