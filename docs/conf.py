# SPDX-License-Identifier: Apache-2.0
"""Settings of the documentation site: `make docs` builds it in build/docs."""

import runpy
from importlib.metadata import version as installed_version
from pathlib import Path

project = "portcall"
author = "The portcall authors"
copyright = author
version = release = installed_version("portcall")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["_build"]
nitpicky = False
keep_warnings = False

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3

# Types stand in the signatures, so the lists of arguments need not repeat them.
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_class_signature = "separated"
autodoc_preserve_defaults = True
add_module_names = False
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True  # attributes of dataclasses are listed once, with their class

html_theme = "furo"
html_title = f"portcall {release}"
html_copy_source = False
highlight_language = "default"  # Python where it is Python; else as it stands

# The page that lists the files is written from the files.
_listed = runpy.run_path(str(Path(__file__).parents[1] / "scripts" / "list_files.py"))["page"]()
(Path(__file__).parent / "files.md").write_text(_listed)
