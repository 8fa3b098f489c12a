"""The toolsets that come with the gateway, one module or package for each, imported when an agent uses it.

The toolset NAME has every tool in the module NAME. A tool that needs a service of the gateway asks the context of its
call for it, by type (`ToolContext.service`). Nothing else has to know about a new tool.
"""
