"""The keys that callers may use, from the settings and from a file that may change while the gateway runs.

Asked by deps. Only digests are kept: no key can be logged.
"""

import hashlib
import hmac
import logging
from collections.abc import Iterable
from pathlib import Path

from pydantic import SecretStr

from gateway.errors import StartupError

_log = logging.getLogger(__name__)


class ApiKeys:
    """Tells right keys from wrong ones.

    Args:
        keys: keys that always count.
        path: file of further keys, one a line; empty lines and lines starting with `#` do not count.

    Attributes:
        required: whether a key is needed at all; not with neither keys nor a file.

    Raises:
        StartupError: the file cannot be read.
    """

    def __init__(self, keys: Iterable[SecretStr], path: Path | None) -> None:
        self._digests = [_digest(key.get_secret_value().encode()) for key in keys]
        self._path = path
        self._file_digests: list[bytes] = []
        self._version: tuple[int, ...] = ()
        self._unreadable = False
        self.required = bool(self._digests) or path is not None
        try:
            self._read_file()
        except (OSError, UnicodeError):
            raise StartupError(f"the file of API keys, {path}, cannot be read as UTF-8 text") from None

    def accepts(self, key: bytes) -> bool:
        """Return whether the key is one of ours; the time it takes does not depend on the key."""
        self._refresh()
        digest = _digest(key)
        matches = [hmac.compare_digest(digest, known) for known in (*self._digests, *self._file_digests)]
        return any(matches)

    def _refresh(self) -> None:
        """Read the file again if it changed; while it cannot be read, its last keys count."""
        try:
            self._read_file()
            self._unreadable = False
        except (OSError, UnicodeError) as error:
            if not self._unreadable:
                _log.warning("the file of API keys cannot be read, its last keys count on: %s", type(error).__name__)
            self._unreadable = True

    def _read_file(self) -> None:
        if self._path is None:
            return
        status = self._path.stat()
        version = (status.st_mtime_ns, status.st_size, status.st_ino)
        if version != self._version:
            lines = (line.strip() for line in self._path.read_text("utf-8").splitlines())
            self._file_digests = [_digest(line.encode()) for line in lines if line and not line.startswith("#")]
            self._version = version


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
