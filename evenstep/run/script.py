"""Runs a script as Python would, and watches it train."""

from __future__ import annotations

import argparse
import builtins
import runpy
import sys
from collections.abc import Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, TracebackType

from evenstep.errors import EvenstepError
from evenstep.run.options import add_options, settings_of
from evenstep.run.watch import Watch

_OURS = str(Path(__file__).parent)


def main(argv: Sequence[str]) -> int:
    """Run a script with its arguments in this worker; called by all workers."""
    parser = argparse.ArgumentParser(
        prog="python -m evenstep.run",
        description="Balance an unmodified script that trains a DistributedDataParallel model.",
        allow_abbrev=False,
    )
    add_options(parser)
    parser.add_argument("-m", "--module", action="store_true", help="SCRIPT is a module")
    parser.add_argument("script", metavar="SCRIPT")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGS")
    args = parser.parse_args(argv)
    try:
        settings = settings_of(args)
    except EvenstepError as error:
        print(f"evenstep run: error: {error}", file=sys.stderr)
        return 2
    with Watch(settings):
        run_script(args.script, args.arguments, is_module=args.module)
    return 0


def run_script(script: str, arguments: Sequence[str], is_module: bool = False) -> None:
    """Run a script or module as ``python script ARGS`` would: its path, `__main__`, errors."""
    sys.argv = [script, *arguments]
    _clean_tracebacks()
    if is_module:
        runpy.run_module(script, run_name="__main__", alter_sys=True)
        return
    path = Path(script).absolute()
    if not getattr(sys.flags, "safe_path", False):
        # ``python -m`` has put the current folder there.
        sys.path[0] = str(path.resolve().parent)
    # Unlike that of runpy.run_path, it stays there for functions that run at exit.
    main = ModuleType("__main__")
    loader = SourceFileLoader("__main__", str(path))
    main.__dict__.update(__file__=str(path), __loader__=loader, __builtins__=builtins)
    sys.modules["__main__"] = main
    exec(compile(path.read_bytes(), str(path), "exec"), main.__dict__)


def _clean_tracebacks() -> None:
    """Leave the frames that ran the script, and those of watching it, out of tracebacks."""
    shown = sys.excepthook

    def show(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        # Python shows the traceback of the error, and not the third argument.
        cleaned = _of_script(traceback)
        shown(kind, error.with_traceback(cleaned), cleaned)

    sys.excepthook = show


def _of_script(traceback: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames above the script, and without our own."""
    frames = []
    while traceback is not None:
        frames.append(traceback)
        traceback = traceback.tb_next
    # Those of the launch come first: ours, and runpy's.
    first = next((i for i, frame in enumerate(frames) if not _is_launch(frame)), len(frames))
    kept = [frame for frame in frames[first:] if not _is_ours(frame)]
    for frame, following in zip(kept, [*kept[1:], None], strict=True):
        frame.tb_next = following
    return kept[0] if kept else None


def _is_ours(frame: TracebackType) -> bool:
    return frame.tb_frame.f_code.co_filename.startswith(_OURS)


def _is_launch(frame: TracebackType) -> bool:
    name = frame.tb_frame.f_code.co_filename
    return _is_ours(frame) or name == "<frozen runpy>" or name == runpy.__file__
