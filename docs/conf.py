"""The documentation site: ``sphinx-build -W docs docs/_build``.

Notebooks are shown with their stored output, which tests compare with a new run. They are outside
of this folder, so they are copied, with their first plots as thumbnails.
"""

from __future__ import annotations

import base64
import inspect
import json
import re
import shutil
from importlib import metadata
from pathlib import Path

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.util.logging import getLogger
from sphinx.util.math import wrap_displaymath

import nrprob

HERE = Path(__file__).parent
ROOT = HERE.parent

project = "nrprob"
author = copyright = "The nrprob developers"
release = version = metadata.version("nrprob")

extensions = [
    "myst_nb",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_design",
]
templates_path = ["_templates"]
exclude_patterns = ["_build", "jupyter_execute"]
html_static_path = ["_static"]
html_theme = "furo"
html_title = "nrprob"
html_css_files = ["nrprob.css"]
html_math_renderer = "mathml"

default_role = "autolink"  # `name` in a docstring is a link if this name exists
python_maximum_signature_line_length = 88
autodoc_type_aliases = {name: name for name in ("ArrayLike", "Labelings", "Labels")}
autosummary_ignore_module_all = False
numpydoc_show_class_members = False

myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
nb_execution_mode = "off"


def as_on_the_site(app, name: str, text: list[str]) -> None:
    """Convert the code and links of pages, which also work on GitHub, into links of the site.

    Public names in code become links to their pages, and links to files outside of this folder lead
    to the pages that show them.
    """
    if app.env.doc2path(name).suffix != ".md":
        return
    for file, page in _SHOWN.items():
        text[0] = text[0].replace(f"]({file})", f"]({page})")
    text[0] = re.sub(r"\]\(\.\./notebooks/(\w+\.ipynb)\)", r"](notebooks/\1)", text[0])
    if name not in {"glossary", "changes"}:
        text[0] = link_first_uses(text[0])
    parts = re.split(r"(^```.*?^```$)", text[0], flags=re.M | re.S)
    text[0] = "".join(p if p.startswith("```") else _NAMES.sub(_as_link, p) for p in parts)


def link_first_uses(page: str) -> str:
    """Link the first use of every term in the sentences of a page to the glossary."""
    linked = set(_OTHER_SENSES)

    def link(match: re.Match) -> str:
        use = match["use"] or match["link"]
        term = _SINGULAR.sub("", " ".join(use.split()).lower()) if use else ""
        if term not in _TERMS or (match["use"] and term in linked):
            return match[0]
        linked.add(term)
        return f"{{term}}`{' '.join(use.split())} <{_TERMS[term]}>`"

    return _USES.sub(link, page)


_SINGULAR = re.compile(r"s$")
_LISTS = re.findall(
    r"^```{glossary}$(.*?)^```$", (HERE / "glossary.md").read_text("utf-8"), re.M | re.S
)
_GLOSSARY = re.findall(r"^(\w.*)$", "".join(_LISTS), re.M)
_TERMS = {_SINGULAR.sub("", term.lower()): term for term in _GLOSSARY}
_OTHER_SENSES = {"cell", "code", "draw", "view"}  # source code, single cells, and verbs
_WORDS = "|".join(sorted((re.sub(r"\\? ", r"\\s+", re.escape(t)) for t in _TERMS), key=len)[::-1])
_USES = re.compile(  # outside of code, cards, headings, tables, formulas, links and pictures
    r"^```.*?^```$|^::::.*?^::::$|^[:#|][^\n]*|<!--.*?-->|\$\$.*?\$\$"
    r"|`[^`]*`|\$[^$]*\$|\[(?P<link>[^\]]*)\]\(glossary\.md\)|!?\[[^\]]*\]\([^)]*\)"
    rf"|(?<![\w-])(?P<use>(?:{_WORDS})s?)(?![\w-])",
    re.M | re.S | re.I,
)


_SHOWN = {"../CONTRIBUTING.md": "adding-a-method.md", "../models/quickstart.toml": "model-files.md"}
_NAMES = re.compile(r"(?<![`\[])`(?:nrprob\.)?((?:\w+\.)?\w+)`(?!`)")


def _as_link(code: re.Match) -> str:
    of, _, name = code[1].rpartition(".")
    holder = getattr(nrprob, of, None) if of in nrprob.__all__ else None if of else nrprob
    if name not in getattr(holder, "__all__", ()) or inspect.ismodule(getattr(holder, name)):
        return code[0]  # `known` is an argument more often than a module
    return f"{{py:obj}}`{code[1]} <nrprob.{code[1]}>`"


def keep_underscores(app, what, name, thing, options, lines: list[str]) -> None:
    """Mark n_clusters_ in the shape of an array as no link."""
    for i, line in enumerate(lines):
        if not line.lstrip().startswith((">>>", "...")):
            lines[i] = re.sub(r"(``.*?``)|(\w)_(?=[,)])", lambda m: m[1] or rf"{m[2]}\_", line)


def write_plain_types(app, what, name, thing, options, signature, returns):
    """Format types in signatures by their names, without modules."""
    odd = re.compile(r"TypeAliasForwardRef\('(\w+)'\)|~(?:\w+\.)+")
    return tuple(text and odd.sub(r"\1", text) for text in (signature, returns))


def give_headings_a_level(app, page, template, context: dict, tree) -> None:
    """Set the level of headings in the list of pages; without it a screen reader skips them."""
    pages = context.get("furo_navigation_tree", "")
    levels = pages.replace('role="heading"', 'role="heading" aria-level="2"')
    context["furo_navigation_tree"] = levels


def write_inline_math(translator, node) -> None:
    """Write a formula as MathML, which browsers render without scripts."""
    _write_mathml(translator, node, node.astext(), "inline")


def write_displayed_math(translator, node) -> None:
    """Write a displayed equation as MathML."""
    _write_mathml(translator, node, wrap_displaymath(node.astext(), None, False), "block")


def _write_mathml(translator, node, latex: str, display: str) -> None:
    mathml = convert(latex, display=display)
    if "\\" in mathml:
        getLogger(__name__).warning("unknown LaTeX command in %r", latex, location=node)
    translator.body.append(mathml)
    raise nodes.SkipNode


def setup(app) -> None:
    """Register the functions above with Sphinx."""
    app.add_html_math_renderer("mathml", (write_inline_math, None), (write_displayed_math, None))
    app.connect("html-page-context", give_headings_a_level, priority=900)  # after the theme
    app.connect("source-read", as_on_the_site)
    app.connect("autodoc-process-signature", write_plain_types)
    app.connect("autodoc-process-docstring", keep_underscores, priority=400)


def lay_out_notebooks(source: Path, target: Path) -> None:
    """Copy notebooks, and write a page of cards, each with the first plot of its notebook."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    cards = []
    for path in sorted(source.glob("*.ipynb")):
        shutil.copy(path, target)
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        title, lead = _opening(cells)
        (target / f"{path.stem}.png").write_bytes(_first_picture(cells))
        cards.append(
            f":::{{grid-item-card}} {title}\n:link: {path.stem}\n:link-type: doc\n"
            f":img-top: {path.stem}.png\n:img-alt: First picture of “{title}”\n\n{lead}\n:::\n"
        )
    names = "\n".join(path.stem for path in sorted(source.glob("*.ipynb")))
    (target / "index.md").write_text(
        "# Gallery\n\nNotebooks, as they ran: a question, a picture, and what it says. The last "
        "picture [compares ten methods on eight data sets](../which-method.md).\n\n"
        "::::{grid} 1 2 2 3\n:gutter: 3\n\n" + "\n".join(cards) + "::::\n\n"
        "![Clusters of ten methods on eight data sets](../comparison.png)\n\n"
        f"```{{toctree}}\n:hidden:\n\n{names}\n```\n",
        encoding="utf-8",
    )


def _opening(cells: list[dict]) -> tuple[str, str]:
    """Title of a notebook, and the first sentence below it."""
    text = "".join(cells[0]["source"]).strip().split("\n", 1)
    title, rest = text[0].lstrip("# "), text[1] if len(text) > 1 else "".join(cells[1]["source"])
    return title, rest.strip().replace("\n", " ").split(". ")[0].rstrip(".") + "."


def _first_picture(cells: list[dict]) -> bytes:
    for cell in cells:
        for output in cell.get("outputs", ()):
            if "image/png" in output.get("data", {}):
                return base64.b64decode("".join(output["data"]["image/png"]))
    raise ValueError("a notebook has no picture")


lay_out_notebooks(ROOT / "notebooks", HERE / "notebooks")
