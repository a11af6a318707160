"""The directive ``{pymq-figures} WHAT``, which shows a part of ``docs/figures/bench.json``;
``SHOWN`` has the possible parts.
"""

from __future__ import annotations

from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from benchmarks import markdown

FILE = Path(__file__).resolve().parents[1] / "figures" / "bench.json"
SHOWN = {
    "about": markdown.about,
    "versions": markdown.versions,
    "headlines": markdown.headlines,
    "queues": markdown.queues,
    "parts": markdown.parts,
}


class Figures(SphinxDirective):
    """A piece of Markdown, made from the JSON when Sphinx reads the page."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Make the nodes of the page."""
        self.env.note_dependency(str(FILE))
        text = SHOWN[self.arguments[0]](markdown.load(FILE))
        return self.parse_text_to_nodes(text, allow_section_headings=True)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register this extension; Sphinx calls this function."""
    app.add_directive("pymq-figures", Figures)
    return {"parallel_read_safe": True}
