import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE / "_ext")]

# A class whose base is a mock has no signature. And taskiq imports FastAPI if FastAPI is installed,
# which fails if OpenTelemetry is already a mock.
import faststream  # noqa: E402, F401 # before the mocks
import taskiq  # noqa: E402, F401 # before the mocks

from pymq import __version__  # noqa: E402 # found only now

project = "pymq"
author = "The pymq authors"
copyright = "The pymq authors"
release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
extensions += ["reference", "figures", "breaks"]  # pymq's own extensions, in docs/_ext
exclude_patterns = ["_build", "_ext", "Thumbs.db"]
smartquotes = False  # pages show settings literally: --quick is no dash, "os" no quotation
nitpicky = True  # an unknown name in a docstring is an error, like a broken link

myst_heading_anchors = 3  # so that pages can link to each other's sections
myst_enable_extensions = ["colon_fence", "deflist"]

# Packages that need not be installed to build the reference.
autodoc_mock_imports = ["kazoo", "opentelemetry", "pandas", "pyarrow", "pyspark", "pytest", "zmq"]
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
# aliases, because the full unions are too long to read
autodoc_type_aliases = {"Gate": "Gate", "Records": "Records"}
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
