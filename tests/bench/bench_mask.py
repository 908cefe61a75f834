"""`mask_mb_s`: a stream that hides 100 secrets in all their forms, beside the bare automaton on the same bytes.

Of the lines of a build's output every thousandth shows a secret in one of its forms.
"""

from __future__ import annotations

import base64
import hashlib
import time
from urllib.parse import quote

from ahocorasick_rs import BytesAhoCorasick, Implementation, MatchKind

from kici.agent.masking import DECOYS, DFA_BYTES, Masker, Secrets
from kici.agent.secret_forms import patterns
from tests.bench.harness import Result, compare
from tests.bench.log_agent import output

NAMES = ("mask_mb_s",)
ROUNDS = 7
BYTES = 32 * 1024 * 1024
PIECE_BYTES = 65_536
"""What a runner hands over at once."""


def run() -> list[Result]:
    secrets = [_secret(number) for number in range(100)]
    pieces = _pieces(secrets)
    size_mb = sum(map(len, pieces)) / 1e6
    hidden = Secrets(secrets)
    found = sorted({pattern for value in secrets for pattern in patterns(value)})
    automaton = BytesAhoCorasick(
        [*DECOYS, *found],
        matchkind=MatchKind.Standard,
        implementation=Implementation.DFA if sum(map(len, found)) <= DFA_BYTES else None,
    )
    rates, peers = [], []
    for number in range(ROUNDS + 1):
        started = time.perf_counter()
        for piece in pieces:
            automaton.find_matches_as_indexes(piece, overlapping=True)
        peer = size_mb / (time.perf_counter() - started)
        masker, masks = Masker(hidden), 0
        started = time.perf_counter()
        for piece in pieces:
            masks += masker.feed(piece).count(b"***")
        rate = size_mb / (time.perf_counter() - started)
        if masks < 100:
            raise RuntimeError(f"only {masks} secrets were hidden")
        if number:
            rates.append(rate)
            peers.append(peer)
    return [compare("mask_mb_s", rates, "the automaton's scan", peers, limit=0.5, unit="MB/s", at_least=True)]


def _secret(number: int) -> str:
    """In turn a token, a password with signs, and a key of several lines."""
    digest = hashlib.sha256(b"%d" % number).hexdigest()
    if number % 10 == 9:
        return "\n".join(digest[start : start + 16] for start in range(0, 64, 16))
    return digest[:40] if number % 2 else f"{digest[:9]}'$\"/{digest[9:14]}&é"


def _pieces(secrets: list[str]) -> list[bytes]:
    lines = b"".join(output(BYTES)).splitlines(keepends=True)
    for number in range(0, len(lines), 1_000):
        value = secrets[number // 1_000 % len(secrets)]
        shown = (value, base64.b64encode(value.encode()).decode(), quote(value))[number // 1_000 % 3]
        lines[number] = f"export TOKEN={shown}\n".encode()
    text = b"".join(lines)
    return [text[start : start + PIECE_BYTES] for start in range(0, len(text), PIECE_BYTES)]
