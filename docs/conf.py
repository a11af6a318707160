import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE / "_ext")]

# A class whose base is a mock has no signature; and taskiq imports FastAPI where that is installed,
# which fails if OpenTelemetry is a mock by then.
import faststream  # noqa: E402, F401 # before the mocks
import taskiq  # noqa: E402, F401 # before the mocks

from pymq import __version__  # noqa: E402 # found only now

project = "pymq"
author = "The pymq authors"
copyright = "The pymq authors"
release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
extensions += ["reference", "figures", "breaks"]  # ours, in docs/_ext
exclude_patterns = ["_build", "_ext", "Thumbs.db"]
smartquotes = False  # settings are read off the pages: --quick is no dash, "os" no quotation
nitpicky = True  # a name in a docstring that leads nowhere is an error, as a broken link is

myst_heading_anchors = 3  # so that pages can link to each other's sections
myst_enable_extensions = ["colon_fence", "deflist"]

# The packages that the build of the reference does without.
autodoc_mock_imports = ["kazoo", "opentelemetry", "pandas", "pyarrow", "pyspark", "pytest", "zmq"]
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_type_aliases = {"Gate": "Gate", "Records": "Records"}  # unions that nobody would read
autodoc_default_options = {"members": True}
napoleon_google_docstring = True
napoleon_numpy_docstring = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = "pymq"
html_static_path = ["_static"]
html_css_files = ["pymq.css"]
html_show_sourcelink = False
html_show_copyright = False
