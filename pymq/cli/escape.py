"""Escapes untrusted text for terminals; only this module decides which text is safe.

Names, keys, values, headers, options and errors come from other users. The text of other users may
contain terminal commands (ECMA-48) or characters that reorder text (Unicode TR9). The commands
print each such character as its code point.
"""

from __future__ import annotations

import json

_HIDDEN = (
    *range(0x20),  # C0, with escape and newline
    *range(0x7F, 0xA0),  # delete, and C1, which are escape sequences of one character
    0x61C,  # from here on: directional marks, embeddings and isolates, ...
    *range(0x200E, 0x2010),
    *range(0x2028, 0x202F),  # ... also the separators of lines and paragraphs, ...
    *range(0x2066, 0x206A),
    0xFEFF,
    *range(0xFFF9, 0xFFFC),
    *range(0xE0000, 0xE0080),  # ... and invisible tags
)


def _number(code: int) -> str:
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


_SHOWN = {code: _number(code) for code in _HIDDEN} | {9: "\\t", 10: "\\n", 13: "\\r"}
# JSON escapes C0 itself, has no \x, and writes characters beyond 16 bits as two surrogates.
_JSON = {code: json.dumps(chr(code))[1:-1] for code in _HIDDEN if code > 0x7F} | {0x7F: "\\u007f"}


def escaped(text: str) -> str:
    """Return *text* as one line that is harmless on a terminal."""
    return text if text.isascii() and text.isprintable() else text.translate(_SHOWN)


def escaped_json(text: str) -> str:
    """Return equivalent JSON that is harmless on a terminal."""
    return text.translate(_JSON)
