"""The toolsets that come with the gateway. Each is one module or package, imported when an agent uses it.

The toolset NAME contains every tool in the module NAME. A tool that needs a service of the gateway requests it by type
from the context of its call (`ToolContext.service`). A new tool needs no registration elsewhere.
"""
