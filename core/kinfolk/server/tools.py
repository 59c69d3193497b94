"""Tools in the API: validation of a request's tools, and encoding of tool calls."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

from kinfolk.engine.answer import Ended
from kinfolk.errors import shown
from kinfolk.sched.request import FinishReason
from kinfolk.server.errors import invalid, unsupported
from kinfolk.text.tool_calls import CallEvent, ToolArguments, ToolStart


def check_tool_choice(choice: Any) -> None:
    """Raise :class:`ApiError` for a choice that would force a call (constrained output)."""
    if choice in (None, "auto", "none"):
        return
    if isinstance(choice, str | dict):
        raise unsupported(
            'tool_choice: only "auto" and "none" are supported, a call cannot be forced; '
            f"got {shown(choice)}",
            "tool_choice",
        )
    raise invalid(f'tool_choice must be "auto" or "none", got {shown(choice)}', "tool_choice")


def check_tools(tools: Sequence[Any]) -> None:
    """Raise :class:`ApiError`, naming the field, for a tool that is not a function with a name."""
    for number, tool in enumerate(tools):
        where = f"tools.{number}"
        kind = tool.get("type", "function") if isinstance(tool, dict) else None
        if kind is None:
            raise invalid(f"{where} must be an object, got {shown(tool)}", where)
        if kind != "function":
            raise unsupported(
                f"{where}: tools of type {shown(kind)} are not supported", f"{where}.type"
            )
        function = tool.get("function")
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(name, str) or not name:
            raise invalid(
                f"{where}.function must be an object with a name, got {shown(function)}",
                f"{where}.function",
            )
        if not isinstance(function.get("parameters") or {}, dict):
            raise invalid(
                f"{where}.function.parameters must be a JSON schema, "
                f"got {shown(function['parameters'])}",
                f"{where}.function.parameters",
            )


class ToolCallEncoder:
    """Encodes the tool calls of one choice, as deltas and as a whole."""

    def __init__(self) -> None:
        self._calls: list[dict[str, Any]] = []
        self._ended: set[int] = set()

    def take(self, event: CallEvent) -> dict[str, Any] | None:
        """The delta of an event, ``None`` for the end of a call. The first delta of a call has its
        id, type and name."""
        if isinstance(event, ToolStart):
            call: dict[str, Any] = {
                "id": f"call_{secrets.token_hex(12)}",
                "type": "function",
                "function": {"name": event.name, "arguments": ""},
            }
            self._calls.append(call)
            return {"index": event.index, **call, "function": dict(call["function"])}
        if isinstance(event, ToolArguments):
            self._calls[event.index]["function"]["arguments"] += event.json
            return {"index": event.index, "function": {"arguments": event.json}}
        self._ended.add(event.index)
        return None

    def complete(self) -> list[dict[str, Any]]:
        """The complete calls, for a message. A client must not execute a truncated one."""
        return [self._calls[index] for index in sorted(self._ended)]

    def finish_reason(self, end: Ended) -> str:
        """``finish_reason`` of the API: ``tool_calls`` if a call is complete and none was truncated
        by the length limit, else the reason of the end."""
        truncated = end.reason is FinishReason.LENGTH and len(self._ended) < len(self._calls)
        return "tool_calls" if self._ended and not truncated else end.reason.value
