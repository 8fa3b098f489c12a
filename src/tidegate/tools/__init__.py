"""Tools: what an agent can do besides talking, as immutable values.

Guarantee: names are unique and in a fixed order before they reach a model; nothing that a caller gets can change what
another one gets; a tool is told who it works for by its context argument and by nothing else. A tool's output is
bounded by whoever shows it (`bound_text`), and says what was left out.
"""

from tidegate.spool import bound_text
from tidegate.tools import extensions
from tidegate.tools.registry import ToolRegistry, builtin_toolsets
from tidegate.tools.services import Delegates, Notes, Recall, Skills, ToolServices
from tidegate.tools.tool import Effect, Result, Tool, ToolContext, tool
from tidegate.tools.tool_names import fit_name
from tidegate.tools.toolset import Toolset

__all__ = [
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
    "extensions",
    "fit_name",
    "tool",
]
