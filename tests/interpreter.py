"""Runs Python with Triton's interpreter, in a process of its own.

The interpreter is chosen when a kernel is first imported, so it cannot be switched on here.
"""

import os
import subprocess
import sys
from pathlib import Path


def run_interpreted(code: str) -> str:
    folders = (str(Path(__file__).parent), os.environ.get("PYTHONPATH", ""))
    environment = os.environ | {
        "TRITON_INTERPRET": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, folders)),
    }
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
