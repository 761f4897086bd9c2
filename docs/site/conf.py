"""Sphinx's settings for the documentation site: ``make docs``.

The source directory is the root of the repository, so that every link in a Markdown file is the same on the site as in
a checkout, and a dead one is a warning. Nothing may be loaded from another host, neither in the build nor by a page.
"""

from __future__ import annotations

import sys
from pathlib import Path

import landing
from sphinx.ext.autodoc.mock import MockFinder

from holdfast import __version__

ROOT = Path(__file__).parents[2]

# Frameworks are not needed to describe the callbacks for them, and are slow to import where they are installed. What
# Sphinx has for that ends too early: the sources of their classes are asked for later, which imports them after all.
FRAMEWORKS = (
    "accelerate",
    "keras",
    "lightgbm",
    "lightning",
    "pytorch_lightning",
    "sklearn",
    "torch",
    "transformers",
    "xgboost",
)
sys.meta_path.insert(0, MockFinder(list(FRAMEWORKS)))

project = "holdfast"
author = "the authors of holdfast"
release = version = __version__
html_show_copyright = False

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "docstrings", "pages", "names"]
root_doc = "docs/index"
include_patterns = [
    "docs/**/*.md",
    "docs/*.md",
    "examples/*.py",
    "examples/README.md",
    "tests/README.md",
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
]
exclude_patterns = [".*", "build", "dist", "benchmarks", "src", "**/__pycache__"]
source_suffix = {".md": "markdown", ".py": "markdown"}  # the extension ``pages`` makes Markdown of an example
myst_heading_anchors = 4
myst_enable_extensions = ["attrs_inline"]
suppress_warnings = ["config.cache"]

autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_inherit_docstrings = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_custom_sections = ["Durability"]
toc_object_entries_show_parents = "hide"
add_module_names = False
default_role = "code"

BRANDED = ("color-brand-primary", "color-brand-content", "color-api-name", "color-api-pre-name")
html_theme = "furo"
html_title = project
html_static_path = ["static", "../kill-and-resume.svg"]
html_css_files = ["site.css"]
html_favicon = "static/favicon.svg"
templates_path = ["templates"]
html_additional_pages = {"index": "landing.html"}
html_context = landing.context(ROOT)
html_copy_source = False
html_theme_options = {
    "light_css_variables": dict.fromkeys(BRANDED, "#0b6e5f"),
    "dark_css_variables": dict.fromkeys(BRANDED, "#5fd3bd"),
}
pygments_style = "friendly"
pygments_dark_style = "github-dark"
