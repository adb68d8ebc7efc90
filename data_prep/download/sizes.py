"""Sizes of files, as their servers tell them."""

import threading
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing import TimeoutError
from multiprocessing.pool import ThreadPool

import requests

from data_prep.download.contact import first_contact
from data_prep.download.remote_file import RemoteFile
from data_prep.download.transfer import HEADERS, TIMEOUT_SECONDS, Bearer, content_length

_CONNECTIONS = 8


def with_sizes(files: Sequence[RemoteFile]) -> list[RemoteFile]:
    """Returns the files with the sizes that their servers tell; unknown where one does not.

    Raises Unreachable where a first answer of any server is waited for in vain.
    """
    # When a server does not answer at all, the other requests need not wait for it as well.
    silent = threading.Event()

    def with_size(file: RemoteFile) -> RemoteFile:
        if file.size is not None or silent.is_set():
            return file
        try:
            response = requests.head(
                file.url,
                headers=HEADERS,
                auth=Bearer(file.token),
                timeout=TIMEOUT_SECONDS,
                allow_redirects=True,
            )
        except requests.RequestException as error:
            if isinstance(error, requests.ConnectionError | requests.Timeout):
                silent.set()
            return file
        first_contact.made = True
        return replace(file, size=content_length(response)) if response.ok else file

    # Unlike an executor's, the threads of this pool do not hold up the end of the process.
    with ThreadPool(_CONNECTIONS) as pool:
        sized = pool.map_async(with_size, files, chunksize=1)
        try:
            return sized.get(first_contact.seconds)
        except TimeoutError:
            first_contact.check(files[0].url)
            return sized.get()
