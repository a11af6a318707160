"""Lets browsers break long names in tables between the names' parts, and nowhere else."""

from __future__ import annotations

import re

from docutils import nodes
from sphinx.application import Sphinx

LONG = 14  # names up to this number of characters are not broken
_JOINT = re.compile(r"(?<=[/_.,:=\]])(?=[^/_.,:=\]\s])|(?<=[a-z])(?=[A-Z])")


def pieces(text: str) -> list[str]:
    """Return the parts of a name, each with the character that joins it to the next part."""
    return _JOINT.split(text) if len(text) > LONG else [text]


def allow(app: Sphinx, tree: nodes.document, page: str) -> None:
    """Put an invisible place for a line break between the parts of each code name in a table."""
    if app.builder.format != "html":
        return
    for entry in tree.findall(nodes.entry):
        for literal in list(entry.findall(nodes.literal)):
            for text in list(literal.findall(nodes.Text)):
                first, *more = pieces(text.astext())
                if more:
                    found: list[nodes.Node] = [nodes.Text(first)]
                    for piece in more:
                        found += [nodes.raw("", "<wbr>", format="html"), nodes.Text(piece)]
                    text.parent.replace(text, found)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register this extension; Sphinx calls this function."""
    app.connect("doctree-resolved", allow)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
