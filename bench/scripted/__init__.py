"""A strict, scripted model server that speaks three formats on one port: chat completions, responses, messages.

Guarantee: it refuses what a strict provider refuses (orphan or duplicate calls and results, duplicate tool names, bad
roles, empty messages, unknown fields, images that are none, thinking that it has not signed), answers the same to the
same request, and counts truthfully how much of each conversation's previous request came again unchanged. It is cheap,
because it shares a machine with what it measures: raw asyncio and httptools, canned bytes for the plain answer, one
write. Everything it keeps is bounded.

The last user message may direct it; each directive takes `times=N` (only the first N requests that meet it) and
`step=K` (only before the K-th tool step's answer, counted from 0):

    [tool NAME {json}]          call a tool; several directives are steps, one after the other
    [together A {json} B {..}]  call several tools in one step
    [loop NAME {json}]          call it again after every result
    [badargs NAME] [unknowntool]  a call with broken arguments; of a tool that is not there
    [saying WORDS]              said before the tool calls, in the same answer
    [say WORDS] [words N] [finish REASON]     the final answer: its text; N words; its finish reason
    [text {"text": "…"}]        the final answer's text with its line breaks, a piece for each line
    [refuse WORDS]              a refusal, as the format marks one
    [think WORDS] [redacted] [nothink]  what it thinks, if asked to think; a block that is sealed; not at all
    [status CODE retry-after=S code=C type=T echo quote]   an HTTP error; it quotes the caller's credential, and what
                                was said
    [slow ms=N] [hold NAME after=N]     a pause between pieces; wait for POST /release/NAME, perhaps after N pieces
    [hang after=N] [cut after=N] [badjson after=N] [error after=N code=C quote nested failed]   stop, hang up, spoil,
                                complain after N pieces
    [garbled chunk=N]           `<xFF>` in the answer is that byte, `<ud800>` that JSON escape; sent N bytes at a time
    [usage input=X output=X cached=X written=X reasoning=X total=X all=X]   counts, or the whole object, are reported
                                as X, whatever that is, percent-encoded
    [whole]                     one body instead of the stream that was asked for
    [hugeline bytes=N] [nodone] [close] [html]     a line without end; no end mark; hang up at once; a web page

A piece is what grows the answer: the opening is the first, then each part of thinking, text and arguments, whatever
the number of events that a format makes of it.

What it is like whatever it is asked, as a writer of summaries above all, is its `temper` (`bench.scripted.temper`).

Also: GET /stats, GET /trace, GET /requests, GET /v1/models, POST /temper, POST /reset, POST /release/NAME,
POST /close-idle.
"""

from bench.scripted.server import RECORDED, ScriptedModel

__all__ = ["RECORDED", "ScriptedModel"]
