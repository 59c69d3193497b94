"""Normalisation of chat messages to the form that all published templates render.

That form: one leading system message, contents as text instead of parts, tool-call arguments as
mappings, reasoning under both of its field names.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from kinfolk.errors import RequestError
from kinfolk.text.formats import ChatFormat

SYSTEM: Final = "system"
REASONING: Final = ("reasoning_content", "reasoning")
_RAW_ARGUMENTS: Final = "_raw"


def normalize_messages(
    messages: Iterable[Mapping[str, Any]], chat: ChatFormat
) -> list[dict[str, Any]]:
    """Normalised copies of the messages. Raises :class:`RequestError` naming the message at fault.

    All system messages are joined, with blank lines between, into one at the front.
    """
    system: list[str] = []
    turns: list[dict[str, Any]] = []
    for index, message in enumerate(messages):
        turn = _normalize(message, f"message {index}", chat)
        if turn["role"] == SYSTEM:
            system.append(turn["content"])
        else:
            turns.append(turn)
    if system:
        turns.insert(0, {"role": SYSTEM, "content": "\n\n".join(filter(None, system))})
    return turns


def _normalize(message: Mapping[str, Any], where: str, chat: ChatFormat) -> dict[str, Any]:
    role = message.get("role") if isinstance(message, Mapping) else None
    if not isinstance(role, str):
        raise RequestError(f"{where}: expected an object with a 'role'")
    turn = dict(message)
    turn["role"] = chat.role_aliases.get(role, role)
    turn["content"] = _text(message.get("content"), where)
    given = next((name for name in REASONING if turn.get(name)), None)
    if given is not None:
        turn.update(dict.fromkeys(REASONING, _text(turn[given], where, given)))
    if turn.get("tool_calls"):
        turn["tool_calls"] = _tool_calls(turn["tool_calls"], where)
    return turn


def _text(content: Any, where: str, field: str = "content") -> str:
    """The text of a field; parts are concatenated."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RequestError(f"{where}: {field!r} must be a text or a list of parts")
    return "".join(_part_text(part, f"{where}, part {index}") for index, part in enumerate(content))


def _part_text(part: Any, where: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    if kind != "text":
        raise RequestError(f"{where}: content of type {kind!r} is not supported, only 'text' is")
    text = part.get("text")
    if not isinstance(text, str):
        raise RequestError(f"{where}: a part of type 'text' needs a 'text'")
    return text


def _tool_calls(calls: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(calls, list) or not all(isinstance(call, Mapping) for call in calls):
        raise RequestError(f"{where}: 'tool_calls' must be a list of objects")
    result = []
    for index, call in enumerate(calls):
        copy = dict(call)
        function = call.get("function")
        if isinstance(function, Mapping):
            copy["function"] = _with_arguments(function, f"{where}, tool call {index}")
        elif "arguments" in call:
            copy = _with_arguments(call, f"{where}, tool call {index}")
        else:
            raise RequestError(f"{where}, tool call {index}: expected a 'function'")
        result.append(copy)
    return result


def _with_arguments(function: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The function with its arguments decoded; text that is no JSON object is kept as ``_raw``."""
    if not isinstance(function.get("name"), str):
        raise RequestError(f"{where}: a function needs a 'name'")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            decoded = json.loads(arguments) if arguments.strip() else {}
        except (ValueError, RecursionError):
            decoded = None
        arguments = decoded if isinstance(decoded, dict) else {_RAW_ARGUMENTS: arguments}
    elif arguments is None:
        arguments = {}
    elif not isinstance(arguments, Mapping):
        raise RequestError(f"{where}: 'arguments' must be an object or its JSON text")
    return {**function, "arguments": arguments}
