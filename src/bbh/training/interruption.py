"""Signals to stop, which wait until the epoch is over and its checkpoint is written."""

import logging
import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from lightning_fabric import Fabric

from bbh.processes import gathered

logger = logging.getLogger("bbh")

# Ctrl-C, and what systems send before they end a program.
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# What may be replaced for a while. A handler of the user's own stays.
_DEFAULTS = (signal.SIG_DFL, signal.default_int_handler)


class Interruption:
    """A signal that has arrived and waits.

    Attributes:
        waiting: The signal; None as long as there is none.
    """

    def __init__(self):
        self.waiting: int | None = None
        self._replaced: dict[signal.Signals, Any] = {}

    def begin(self) -> None:
        """Lets signals wait from now on."""
        for one in _SIGNALS:
            handler = signal.getsignal(one)
            if handler in _DEFAULTS:
                self._replaced[one] = handler
                signal.signal(one, self._arrived)

    def end(self) -> None:
        """Lets signals do again what they did before."""
        for one, handler in self._replaced.items():
            signal.signal(one, handler)

    def agreed(self, fabric: Fabric) -> bool:
        """Whether a signal has arrived in any process; if so, it now waits in all of them."""
        arrived = max(one or 0 for one in gathered(fabric, self.waiting))
        if arrived and self.waiting is None:
            self.waiting = arrived
        return bool(arrived)

    def deliver(self) -> None:
        """Does what the signal would have done at once, which usually ends the program."""
        if self.waiting is not None:
            self.end()
            signal.raise_signal(self.waiting)

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.waiting is not None:
            self.deliver()
        self.waiting = number
        logger.warning(
            "interrupted: the epoch is finished and its checkpoint written first; a second signal "
            "stops at once."
        )


@contextmanager
def waiting_signals(wanted: bool) -> Generator[Interruption]:
    """Within this block SIGINT and SIGTERM wait until ``deliver`` is called, if that is possible.

    Only a program's main thread can handle signals.
    """
    interruption = Interruption()
    if not wanted or threading.current_thread() is not threading.main_thread():
        yield interruption
        return
    interruption.begin()
    try:
        yield interruption
    except Exception:
        # Processes of a data loader get Ctrl-C as well and end at once, which is an error here.
        interruption.deliver()
        raise
    finally:
        interruption.end()
    interruption.deliver()
