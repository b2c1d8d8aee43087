"""Pieces of an HTML page that needs nothing from outside: every text is escaped, pictures are inside it."""

import base64
import html
import io
from collections.abc import Iterable, Mapping
from importlib.resources import files

import matplotlib
from matplotlib.figure import Figure

from analysis.drawing import Picture

Images = dict[str, bytes]
"""A picture in each format."""
_DPI = 130
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
"""The browser itself refuses any request to the outside."""


def page(title: str, sections: Mapping[str, str], *, intro: str, footer: str, refresh: int | None = None) -> str:
    """A whole page: a section for each title that has content, with a table of contents."""
    shown = {name: content for name, content in sections.items() if content}
    links = "".join(f'<li><a href="#{anchor(name)}">{html.escape(name)}</a></li>' for name in shown)
    body = "".join(
        f'<section aria-labelledby="{anchor(name)}"><h2 id="{anchor(name)}">{html.escape(name)}</h2>{content}</section>'
        for name, content in shown.items()
    )
    again = f'<meta http-equiv="refresh" content="{refresh}">' if refresh else ""
    return (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">{again}'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<title>{html.escape(title)}</title><style>{_resource('page.css')}</style></head><body>"
        f'<a class="skip" href="#content">Skip to the content</a><header><h1>{html.escape(title)}</h1>{intro}'
        f'<nav aria-label="Contents"><ul>{links}</ul></nav></header><main id="content">{body}</main>'
        f"<footer>{footer}</footer><script>{_resource('page.js')}</script></body></html>"
    )


def anchor(name: str) -> str:
    return "-".join("".join(c if c.isalnum() else " " for c in name.lower()).split())


def _resource(name: str) -> str:
    return files("analysis").joinpath(name).read_text()


def paragraph(text: str) -> str:
    return f"<p>{html.escape(text)}</p>"


def notes(sentences: Iterable[str]) -> str:
    return "".join(f'<p class="note" role="note">{html.escape(text)}</p>' for text in dict.fromkeys(sentences))


def definitions(entries: Mapping[str, object]) -> str:
    rows = "".join(f"<dt>{html.escape(name)}</dt><dd>{html.escape(str(value))}</dd>" for name, value in entries.items())
    return f"<dl>{rows}</dl>"


def commands(lines: Iterable[str]) -> str:
    text = "\n".join(lines)
    return f"<pre><code>{html.escape(text)}</code></pre>"


def folded(summary: str, content: str) -> str:
    """Content behind a line that opens it, by mouse or keyboard."""
    return f"<details><summary>{html.escape(summary)}</summary>{content}</details>"


def picture(shown: Picture, images: Images) -> str:
    kind = "svg" if shown.vector else "png"
    mime = "image/svg+xml" if shown.vector else "image/png"
    content = base64.b64encode(images[kind]).decode()
    alt = html.escape(f"{shown.title}. {shown.caption.split('. ')[0]}.")
    return (
        f'<figure><img src="data:{mime};base64,{content}" alt="{alt}"><figcaption>'
        f"<strong>{html.escape(shown.title)}.</strong> {html.escape(shown.caption)}</figcaption></figure>"
    )


def rendered(figure: Figure) -> Images:
    """The figure as 'svg' and 'png', the same bytes every time."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # laid out once, not for each format
    images = {}
    for kind, metadata in (("svg", {"Date": None}), ("png", None)):
        target = io.BytesIO()
        with matplotlib.rc_context({"svg.hashsalt": "gd_ray"}):
            figure.savefig(target, format=kind, dpi=_DPI, metadata=metadata)
        images[kind] = target.getvalue()
    return images
