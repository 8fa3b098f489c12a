"""A strict, scripted model server with three formats on one port: chat completions, responses, messages.

It refuses what strict providers refuse (orphan or duplicate calls and results, duplicate tool names, bad roles, empty
messages, unknown fields, invalid images, thinking that it has not signed). It always gives the same answer to the
same request, and counts how much of each conversation's previous request is repeated unchanged. It is cheap, because it
shares a machine with the measured program: raw asyncio and httptools, canned bytes for the plain answer, one write.
Everything that it stores is bounded.

The last user message may contain directives. Each accepts `times=N` (only the first N requests with it) and `step=K`
(only for the answer of the K-th tool step, counted from 0):

    [tool NAME {json}]          call a tool; several directives are steps, one after the other
    [together A {json} B {..}]  call several tools in one step
    [loop NAME {json}]          call it again after every result
    [badargs NAME] [unknowntool]  a call with broken arguments; a call of an unknown tool
    [saying WORDS]              text before the tool calls, in the same answer
    [say WORDS] [words N] [finish REASON]     the final answer: its text; N words; its finish reason
    [text {"text": "…"}]        the final answer's text with its line breaks, a piece for each line
    [refuse WORDS]              a refusal, in the format's own form
    [think WORDS] [redacted] [nothink]  its thinking, if thinking is on; a redacted block; no thinking
    [status CODE retry-after=S code=C type=T echo quote]   an HTTP error; `echo` quotes the caller's credential, `quote`
                                the message
    [slow ms=N] [hold NAME after=N]     a pause between pieces; wait for POST /release/NAME, optionally after N pieces
    [hang after=N] [cut after=N] [badjson after=N] [error after=N code=C quote nested failed]   after N pieces: stop,
                                close the connection, send invalid JSON, send an error event
    [garbled chunk=N]           `<xFF>` in the answer is that byte, `<ud800>` that JSON escape; sent N bytes at a time
    [usage input=X output=X cached=X written=X reasoning=X total=X all=X]   counts, or the whole object, are reported
                                as X, which is percent-encoded
    [whole]                     one body instead of the requested stream
    [hugeline bytes=N] [nodone] [close] [html]     an endless line; no end mark; close at once; a web page

The opening is the first piece of an answer, followed by each part of thinking, text and arguments. A format may send
several events for one piece.

Settings that apply to all requests, mainly for summaries, are in `bench.scripted.behaviour`. The endpoints of other
kinds of models (`/embeddings`, `/audio/transcriptions`, `/audio/speech`) are in `bench.scripted.services`.

Also: GET /stats, GET /trace, GET /requests, GET /v1/models, POST /behaviour, POST /reset, POST /release/NAME,
POST /close-idle.
"""

from bench.scripted.server import RECORDED, ScriptedModel

__all__ = ["RECORDED", "ScriptedModel"]
