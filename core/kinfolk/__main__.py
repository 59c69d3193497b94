"""``python -m kinfolk``."""

from __future__ import annotations

from kinfolk.cli.main import main

if __name__ == "__main__":
    try:
        main()
    finally:
        # If Ctrl-C ends an exec() of a string (dataclasses do that while modules are imported),
        # "python -m" kills itself by SIGINT at its end, though the exception was caught and the
        # exit code is 130. The next exec() makes Python forget that.
        exec("")
