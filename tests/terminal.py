"""Commands on a terminal."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios


def shown_on_terminal(module, *argv, cwd=None, columns=None):
    """Run `python -m module` on a terminal, to a good end, and return all that is shown there."""
    terminal, side = pty.openpty()
    if columns is not None:
        fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", module, *map(str, argv)],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=side,
        stderr=side,
        env={**{k: v for k, v in os.environ.items() if k != "COLUMNS"}, "TERM": "xterm"},
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
