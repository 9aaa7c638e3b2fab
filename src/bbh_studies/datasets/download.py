"""Downloads that continue where an earlier one was interrupted."""

import os
from http import HTTPStatus
from pathlib import Path
from typing import Any

_SECONDS = 30.0  # longest wait for an answer from the server
_CHUNK = 2**16


def resuming(partial: Path) -> Any:
    """A downloader for pooch that keeps what has arrived so far in the file ``partial``.

    pooch checks the whole file and moves it to its place, so a partial file that belongs to
    something else is noticed and not used again.
    """

    def download(url: str, output_file: Any, pooch: Any) -> None:
        del pooch
        import requests

        done = partial.stat().st_size if partial.exists() else 0
        headers = {"Range": f"bytes={done}-"} if done else {}
        with requests.get(url, headers=headers, stream=True, timeout=_SECONDS) as response:
            if response.status_code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                partial.unlink()
                return download(url, output_file, None)
            response.raise_for_status()
            # A server that does not know ranges sends everything again.
            goes_on = response.status_code == HTTPStatus.PARTIAL_CONTENT
            with partial.open("ab" if goes_on else "wb") as file:
                for chunk in response.iter_content(_CHUNK):
                    file.write(chunk)
        os.replace(partial, output_file)

    return download
