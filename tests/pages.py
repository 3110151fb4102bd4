"""Parse pages of reports, and check properties of all pages."""

import html.parser
import re


class Page(html.parser.HTMLParser):
    """Elements of a page; raises for tags that do not match."""

    VOID = ("meta", "img", "link", "br", "wbr")

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.images, self.loads, self.captions = [], [], [], [], []
        self.scopes, self.text, self.tables = [], "", 0
        self.headings, self.cells = [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        result = dict(attributes)
        if tag not in self.VOID:
            self.open.append(tag)
        if "id" in result:
            self.ids.append(result["id"])
        if tag == "table":
            self.tables += 1
        if tag == "caption":
            self.captions.append("")
        if re.fullmatch(r"h\d", tag):
            self.headings.append((int(tag[1]), ""))
        if tag == "tr":
            self.cells.append([])
        if tag in ("th", "td"):
            self.cells[-1].append("")
        if tag == "img":
            self.images.append(result.get("alt", ""))
        if tag == "th":
            self.scopes.append(result.get("scope"))
        self.loads += [result[k] for k in ("src", "href", "srcset", "action") if k in result]
        assert tag not in ("script", "link", "iframe", "object")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data
        if "caption" in self.open:
            self.captions[-1] += data
        if "th" in self.open or "td" in self.open:
            self.cells[-1][-1] += data
        if self.headings and self.open and self.open[-1] == f"h{self.headings[-1][0]}":
            level, text = self.headings[-1]
            self.headings[-1] = level, text + data


def page_of(path):
    """Parse a page and check the elements that every reader and browser needs."""
    text = path.read_text(encoding="utf-8")
    page = Page(text)
    assert len(set(page.ids)) == len(page.ids)
    assert all(page.images)
    assert len(page.captions) == page.tables
    assert all(caption.strip() for caption in page.captions)
    assert set(page.scopes) <= {"row", "col", "rowgroup", "colgroup"}
    assert all(at.startswith(("#", "data:")) for at in page.loads)
    assert {at[1:] for at in page.loads if at.startswith("#")} <= set(page.ids)
    levels = [level for level, _ in page.headings]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(b <= a + 1 for a, b in zip(levels, levels[1:], strict=False))
    assert '<html lang="en">' in text
    assert not re.search(r"url\(|@import", text)
    return page
