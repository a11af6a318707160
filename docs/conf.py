from pymq import __version__

project = "pymq"
author = "The pymq authors"
release = __version__
extensions = ["myst_parser"]
myst_heading_anchors = 3  # so that pages can link to each other's sections
html_theme = "furo"
exclude_patterns = ["_build"]
