"""How the server behaves, apart from the model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Bounds and manners of the server. Sizes in bytes, times in seconds.

    ``api_keys`` empty = anybody may ask. ``cors`` is ``off``, ``localhost``, ``*`` or origins
    separated by commas. ``max_queue`` counts generations that wait beside those that run.
    ``strict_model`` answers a model name other than ``model_name`` with 404; by default any name
    is taken for the one model there is, because clients hard-code names.
    """

    model_name: str
    api_keys: tuple[str, ...] = ()
    cors: str = "localhost"
    strict_model: bool = False
    public_metrics: bool = False
    max_body: int = 64 * 2**20
    max_queue: int = 64
    max_choices: int = 16
    ping_after: float = 15.0
    headers_after: float = 1.0
    write_timeout: float = 30.0
    grace: float = 5.0
