"""Where events come from. One folder per forge implements `Forge`, and one test suite holds all of them to this page.

A delivery passes through a forge in these steps:

1. Intake finds the `Source` by the request's path and reads at most `body_limit` bytes.
2. `verify` sees the raw bytes as they came. Nothing of the body has been decoded before, and nothing of a delivery that
   fails here is stored.
3. `identify` says what the delivery is: its event, its id, and for the event log its repository and ref. It proves that
   the body can be decoded (a body that cannot is refused, not stored) and builds as little as it can of it.
4. The row is committed and the sender gets its 2xx.
5. Later `normalize` turns the stored row into the one form that the rules and workflows see, or says why nobody needs
   to care. It may run in another process, in a later version, and more than once: the same row gives the same answer.

Every method is a pure function: no I/O, no clock, no state. They are called concurrently, and from threads when a body
is large. Header names are lower-case. A body is any buffer: a large one is a read-only map of a file, so nobody may
slice or copy it without need. What `verify` and `identify` raise is a `ForgeError` whose sentence the sender reads, so
it never contains a secret or an expected signature.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from mmap import mmap
from typing import Protocol, TypeAlias

from msgspec import Struct

from kici.engine.events import Event
from kici.errors import KiciError

Headers: TypeAlias = Mapping[str, str]
Body: TypeAlias = bytes | bytearray | memoryview | mmap

MAX_CHANGED_FILES = 3000
"""With more, the changed files count as unknown: a path filter then matches, and the event stays small."""


class ForgeError(KiciError):
    code = "forge_error"
    status = 400


class BadSignature(ForgeError):
    """The delivery does not prove that it knows the source's secret."""

    code = "signature_invalid"
    status = 401


class Unreadable(ForgeError):
    """The body is not what this forge sends."""

    code = "payload_unreadable"
    status = 400


class Source(Struct, frozen=True, kw_only=True):
    """What is configured about one sender. Secrets are not part of it."""

    name: str
    provider: str
    routing_key: str
    verification_method: str = "hmac_sha256"
    """`hmac_sha256` or `api_key`"""
    header_name: str = ""
    """Where the signature or key stands; empty = the forge's own."""
    event_type_header: str = ""
    event_type_path: str = ""
    """Dots between keys, optionally `$.` in front."""
    delivery_id_header: str = ""
    clone_url: str = ""
    """Template with `{repo}`; empty = what the delivery says."""


class Identity(Struct, frozen=True):
    """Empty = the delivery does not say."""

    event_name: str
    """The forge's own name of the event, as filters on a source and the event log show it."""
    delivery_id: str = ""
    """Equal for a delivery that is sent again. Unique per source only."""
    action: str = ""
    repo: str = ""
    ref: str = ""


class Normalized(Struct, frozen=True):
    event: Event
    clone_url: str = ""
    """Empty = the event has no repository, or the orchestrator itself serves it."""


class Ignored(Struct, frozen=True):
    """Nothing can come of the delivery. `reason` is a sentence for the event log."""

    reason: str


class Forge(Protocol):
    @property
    def body_limit(self) -> int:
        """Bytes that the forge sends at most."""

    def credential_headers(self, source: Source) -> frozenset[str]:
        """Names, in lower case, of the headers that prove the sender. They are never stored."""

    def verify(self, headers: Headers, body: Body, secrets: Sequence[bytes], source: Source) -> None:
        """Return if one of `secrets` (two while one is being replaced) is proven, in time that does not depend on
        how much of a guess is right; else raise `BadSignature`. Without secrets nothing is ever accepted.
        """

    def identify(self, headers: Headers, body: Body, source: Source) -> Identity:
        """Raises `Unreadable`."""

    def normalize(self, event_name: str, headers: Headers, body: Body, source: Source) -> Normalized | Ignored:
        """Raises `Unreadable` if something is missing that the forge always sends. Ids and names in the event are
        checked: a `sha` is hexadecimal, a `repo` has no spaces, so that they may stand in an argument or a path.
        """
