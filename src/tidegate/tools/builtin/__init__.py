"""The toolsets that come with the gateway. Each is a module or package that is imported when an agent uses it.

The toolset NAME contains every tool in the module NAME. A tool that needs one of the gateway's services requests it by
type from the context of its call (`ToolContext.service`). New tools need no registration elsewhere.
"""
