"""Configuration of Sphinx for the site. `build_site.py` writes the source folder; `make site` runs it."""

from typing import Any

from docutils.nodes import literal_block

import paceline

project = "Paceline"
version = release = paceline.__version__
copyright = "the authors of Paceline"
html_title = f"Paceline {version}"
html_show_copyright = False

extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
python_maximum_signature_line_length = 80
add_module_names = False

smartquotes = False  # `--ray` stays as it is

# Code blocks are shell sessions, tables of figures and errors, and Python.
highlight_language = "none"
pygments_style = "friendly"
pygments_dark_style = "native"
suppress_warnings = ["misc.highlighting_failure"]  # Python with "…" in it

html_theme = "furo"
html_theme_options = {"top_of_page_buttons": []}
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = [
    (f"{name}.js", {"defer": "defer"})
    for name in ("memory", "pipeline", "stragglers", "bandwidth", "calculators")
]
html_copy_source = False
html_show_sourcelink = False
html_use_index = True
html_show_search_summary = False  # a page that is read from the disk may not fetch others


COMMANDS = ("paceline ", "python ", "pip ", "make ", "torchrun ", "mpirun ", "srun ")


def setup(app: Any) -> None:
    app.connect("html-page-context", set_language)
    app.connect("doctree-resolved", mark_commands)


def mark_commands(app: Any, tree: Any, page: str) -> None:
    """Mark blocks of commands, whose long lines are wrapped: see site.css."""
    for block in tree.findall(literal_block):
        if block.astext().startswith(COMMANDS):
            block["classes"].append("command")


def set_language(app: Any, page: str, template: str, context: dict[str, Any], tree: Any) -> None:
    """Declare the language of a page, for screen readers and fonts."""
    if page.startswith("docs/zh/") or page.endswith(".zh"):
        context["language"] = "zh"
