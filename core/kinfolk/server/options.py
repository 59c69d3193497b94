"""Options of the server: names, keys, limits and timeouts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Options of the server. Sizes are in bytes, times in seconds.

    ``api_keys`` empty = no authentication. ``cors`` is ``off``, ``localhost``, ``*`` or origins
    separated by commas. ``max_queue`` limits the waiting generations, ``max_choices`` the field
    ``n``. ``strict_model`` answers 404 to a model name other than ``model_name``; by default any
    name selects the model, because clients hard-code names. ``ping_after`` is the silence after
    which a stream sends a comment, ``headers_after`` the longest wait for a first piece before a
    stream sends its headers, ``grace`` the time for running requests after a signal.
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
