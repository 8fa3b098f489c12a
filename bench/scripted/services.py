"""The endpoints of models of other kinds: `/embeddings`, `/audio/transcriptions` and `/audio/speech`.

They refuse what OpenAI's endpoints refuse: unknown fields, wrong types, texts and sounds beyond the limits, forms
without a file. The same request always has the same answer. How they misbehave is set with `POST /behaviour`, by
endpoint (`Behaviour.services`), since the texts that they receive contain directives for chat models:

    status CODE     an HTTP error                   html            a web page
    hang            no answer                       cut             the connection is closed within the answer
    slow MS         an answer after this time       garbage         an answer that is not JSON, or an empty sound
    fewer           one vector too few              mixed           vectors of different lengths
    dimensions N    vectors of another length       impossible      a number that no vector can contain
    twice           an index occurs twice           zero            vectors of zeros
    base64          vectors in base64               nousage         no usage
    refuse TEXT     an error if a text of the request contains TEXT
"""

import asyncio
import base64
import hashlib
import re
from array import array
from typing import TYPE_CHECKING, Any

import msgspec

from bench.scripted.embedding import DIMENSIONS, embedding
from bench.scripted.interface import Refusal
from bench.scripted.wire import END, framed, reply_of

if TYPE_CHECKING:
    from bench.scripted.connection import Connection
    from bench.scripted.server import ScriptedModel

TEXTS = 2048
TEXT_TOKENS = 8192
ALL_TOKENS = 300_000
SOUND_BYTES = 25 * 1024 * 1024
SPOKEN_CHARACTERS = 4096
ENDINGS = ("flac", "m4a", "mp3", "mp4", "mpeg", "mpga", "oga", "ogg", "wav", "webm")
SOUNDS = {
    "mp3": "audio/mpeg",
    "opus": "audio/opus",
    "aac": "audio/aac",
    "flac": "audio/flac",
    "wav": "audio/wav",
    "pcm": "audio/pcm",
}
PIECE = 1024
SAID = re.compile(rb"say:([^\x00]*)")
"""In a sound: what is said in it."""


def path_of(address: str) -> str:
    """The name of the endpoint at this address, or empty."""
    return next((name for name in SERVICES if address.endswith(f"/{name}")), "")


async def serve(
    server: "ScriptedModel", connection: "Connection", name: str, headers: dict[str, str], body: bytes, key: str | None
) -> None:
    """Answer one request."""
    mood = server.mood(name)
    word, _, rest = mood.partition(" ")
    try:
        _check_key(headers, key)
        if word == "status":
            raise Refusal("The script says so.", status=int(rest), code=_CODES.get(int(rest)))
        if word == "refuse" and rest.encode() in body:
            raise Refusal("This text is not accepted.")
        kind, answer = SERVICES[name](server, headers, body, word, rest)
    except Refusal as refusal:
        server.counts["refused"] += 1
        server.refusals.append(refusal.message)
        error = {
            "message": refusal.message,
            "type": "invalid_request_error",
            "param": refusal.param,
            "code": refusal.code,
        }
        connection.write(reply_of(refusal.status, msgspec.json.encode({"error": error})))
        return
    if word == "slow":
        await asyncio.sleep(int(rest) / 1000)
    if word == "hang":
        await asyncio.Event().wait()
    if word == "html":
        connection.write(reply_of(200, b"<html>a page</html>", kind="text/html"))
    elif word == "cut":
        connection.write(reply_of(200, answer, kind=kind)[: -len(answer) // 2])
        connection.hang_up()
    elif kind.startswith("audio/"):
        head = f"HTTP/1.1 200 Scripted\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n"
        connection.write(head.encode())
        for start in range(0, len(answer), PIECE):
            connection.write(framed(answer[start : start + PIECE]))
            await connection.writable()
        connection.write(END)
    else:
        connection.write(reply_of(200, b'{"nothing": ' if word == "garbage" else answer, kind=kind))


_CODES = {429: "rate_limit_exceeded", 401: "invalid_api_key"}


def _check_key(headers: dict[str, str], key: str | None) -> None:
    if key is not None and headers.get("authorization") != f"Bearer {key}":
        raise Refusal("Incorrect API key provided.", status=401, code="invalid_api_key")


def _fields(headers: dict[str, str], body: bytes, known: dict[str, Any], needed: tuple[str, ...]) -> dict[str, Any]:
    """The fields of a JSON request, with the types of `known`."""
    if headers.get("content-type", "").partition(";")[0] != "application/json":
        raise Refusal("you must provide a JSON body with the content type application/json", status=415)
    try:
        fields = msgspec.json.decode(body)
    except msgspec.DecodeError:
        fields = None
    if not isinstance(fields, dict):
        raise Refusal("We could not parse the JSON body of your request.")
    for name, value in fields.items():
        if name not in known:
            raise Refusal(f"Unrecognized request argument supplied: {name}", param=name)
        if not isinstance(value, known[name]) or isinstance(value, bool):
            raise Refusal(f"Invalid type for '{name}'.", param=name, code="invalid_type")
    for name in needed:
        if fields.get(name) in (None, ""):
            raise Refusal(f"you must provide a {name} parameter", param=name)
    return fields


def _embeddings(
    server: "ScriptedModel", headers: dict[str, str], body: bytes, mood: str, rest: str
) -> tuple[str, bytes]:
    known = {"model": str, "input": str | list, "encoding_format": str, "dimensions": int, "user": str}
    fields = _fields(headers, body, known, ("model", "input"))
    if fields.get("encoding_format", "float") not in ("float", "base64"):
        raise Refusal("Invalid value for 'encoding_format'.", param="encoding_format")
    dimensions = fields.get("dimensions", DIMENSIONS)
    if not 1 <= dimensions <= 3072:
        raise Refusal("Invalid value for 'dimensions'.", param="dimensions")
    texts = [fields["input"]] if isinstance(fields["input"], str) else fields["input"]
    if not texts or len(texts) > TEXTS or not all(isinstance(text, str) and text for text in texts):
        raise Refusal("'$.input' is invalid. Please check the API reference.", param="input")
    tokens = [len(text.encode()) // 4 + 1 for text in texts]
    if max(tokens) > server.behaviour.text_tokens:
        raise Refusal(
            f"This model's maximum context length is {server.behaviour.text_tokens} tokens, however you requested "
            f"{max(tokens)} tokens ({max(tokens)} in your prompt; 0 for the completion). Please reduce your prompt; or "
            "completion length."
        )
    if sum(tokens) > ALL_TOKENS:
        raise Refusal(f"Requested {sum(tokens)} tokens, max {ALL_TOKENS} tokens per request", param="input")
    length = int(rest) if mood == "dimensions" else dimensions
    vectors = [embedding(text, length, server.synonyms) for text in texts]
    if mood == "zero":
        vectors = [[0.0] * length for _ in texts]
    if mood == "mixed":
        vectors[-1] = vectors[-1][:-1]
    data: list[dict[str, Any]] = [
        {"object": "embedding", "index": number, "embedding": vector} for number, vector in enumerate(vectors)
    ]
    if mood == "base64" or fields.get("encoding_format") == "base64":
        for item in data:
            item["embedding"] = base64.b64encode(array("f", item["embedding"]).tobytes()).decode()
    if mood == "fewer":
        data.pop()
    if mood == "twice":
        data[-1]["index"] = len(texts)
    answer: dict[str, Any] = {"object": "list", "data": data, "model": fields["model"]}
    if mood != "nousage":
        answer["usage"] = {"prompt_tokens": sum(tokens), "total_tokens": sum(tokens)}
    encoded = msgspec.json.encode(answer)
    if mood == "impossible":
        encoded = re.sub(rb"\[-?\d[^,]*,", b"[1e39,", encoded, count=1)
    server.counts["texts"] += len(texts)
    return "application/json", encoded


def _transcription(
    server: "ScriptedModel", headers: dict[str, str], body: bytes, mood: str, rest: str
) -> tuple[str, bytes]:
    fields, name, sound = _form(headers, body)
    known = ("model", "response_format", "language", "prompt", "temperature")
    for field in fields:
        if field not in known:
            raise Refusal(f"Unrecognized request argument supplied: {field}", param=field)
    if not fields.get("model"):
        raise Refusal("you must provide a model parameter", param="model")
    if fields.get("response_format", "json") != "json":
        raise Refusal("Only the response format json is scripted.", param="response_format")
    if not re.fullmatch("[a-z]{2}|", fields.get("language", "")):
        raise Refusal("Invalid language. Language parameter must be specified in ISO-639-1.", param="language")
    if len(sound) > SOUND_BYTES:
        raise Refusal(
            f"Maximum content size limit ({SOUND_BYTES}) exceeded ({len(sound)} bytes read)", status=413, param="file"
        )
    if name.rpartition(".")[2] not in ENDINGS:
        raise Refusal(f"Invalid file format. Supported formats: {list(ENDINGS)}", param="file")
    if not sound:
        raise Refusal("Audio file might be corrupted or unsupported", param="file", code="invalid_value")
    found = SAID.search(sound)
    text = found[1].decode("utf-8", "replace") if found else f"A sound of {len(sound)} bytes."
    answer: dict[str, Any] = {"text": text}
    if mood != "nousage":
        seconds = max(1, len(sound) // 16_000)
        answer["usage"] = (
            {"type": "duration", "seconds": seconds}
            if fields["model"].startswith("whisper")
            else {
                "type": "tokens",
                "input_tokens": 10 * seconds,
                "input_token_details": {"text_tokens": 0, "audio_tokens": 10 * seconds},
                "output_tokens": len(text) // 4 + 1,
                "total_tokens": 10 * seconds + len(text) // 4 + 1,
            }
        )
    return "application/json", msgspec.json.encode(answer)


def _form(headers: dict[str, str], body: bytes) -> tuple[dict[str, str], str, bytes]:
    """The fields of a form, and the name and content of its file."""
    found = re.fullmatch(r"multipart/form-data; boundary=([\w'()+,./:=?-]{1,70})", headers.get("content-type", ""))
    if found is None:
        raise Refusal("The content type must be multipart/form-data with a boundary.", status=415)
    mark = b"--" + found[1].encode()
    begin, *parts = (b"\r\n" + body).split(b"\r\n" + mark)
    if begin or len(parts) < 2 or parts[-1] not in (b"--", b"--\r\n"):
        raise Refusal("The form could not be parsed.")
    fields: dict[str, str] = {}
    name, sound = "", b""
    for part in parts[:-1]:
        head, _, content = part.removeprefix(b"\r\n").partition(b"\r\n\r\n")
        said = re.match(
            r'(?i)Content-Disposition: form-data; name="([^"\r\n]+)"(?:; filename="([^"\r\n]+)")?', head.decode()
        )
        if said is None:
            raise Refusal("A part of the form has no name.")
        if said[1] == "file" and said[2]:
            name, sound = said[2], content
        elif said[1] in fields:
            raise Refusal(f"Duplicate field: {said[1]}", param=said[1])
        else:
            fields[said[1]] = content.decode()
    if not name:
        raise Refusal("you must provide a file parameter", param="file")
    return fields, name, sound


def _speech(server: "ScriptedModel", headers: dict[str, str], body: bytes, mood: str, rest: str) -> tuple[str, bytes]:
    known = {
        "model": str,
        "input": str,
        "voice": str,
        "response_format": str,
        "speed": int | float,
        "instructions": str,
        "stream_format": str,
    }
    fields = _fields(headers, body, known, ("model", "input", "voice"))
    if len(fields["input"]) > SPOKEN_CHARACTERS:
        raise Refusal(
            f"Invalid 'input': string too long. Expected a string with maximum length {SPOKEN_CHARACTERS}.",
            param="input",
            code="string_above_max_length",
        )
    kind = SOUNDS.get(fields.get("response_format", "mp3"))
    if kind is None:
        raise Refusal("Invalid value for 'response_format'.", param="response_format")
    if mood == "garbage":
        return kind, b""
    text = f"{fields['voice']} say:{fields['input']}\0".encode()
    return kind, text + hashlib.sha256(text).digest() * len(fields["input"])


SERVICES = {"embeddings": _embeddings, "audio/transcriptions": _transcription, "audio/speech": _speech}
