"""Commands on a terminal."""

import os
import pty
import subprocess
import sys


def shown_on_terminal(module, *argv, cwd=None):
    """Run `python -m module` on a terminal, to a good end, and return all that is shown there."""
    terminal, side = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", module, *map(str, argv)],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=side,
        stderr=side,
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(side)
    pieces = b""
    try:
        while piece := os.read(terminal, 2**16):
            pieces += piece
    except OSError:
        pass  # That is how the terminal says that nobody writes to it any more.
    os.close(terminal)
    assert process.wait() == 0
    return pieces.decode()
