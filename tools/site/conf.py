"""Settings of Sphinx for the pages that tools/site/build.py writes."""
import gc
import os

from sphinx import addnodes

project = html_title = "Tapestry"
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
root_doc = "index"
myst_heading_anchors = 6
highlight_language = "none"
html_theme = "theme"
html_theme_path = [os.path.dirname(os.path.abspath(__file__))]
html_copy_source = html_show_sourcelink = html_show_sphinx = False
html_use_index = smartquotes = False
html_show_search_summary = False  # a page that is opened from a folder cannot read other pages

gc.set_threshold(200000, 20, 20)  # the trees of all pages live until the end


def setup(app):
    """Gives the theme the list of all pages, and the place of each in the course."""
    chapters = []

    def navigation(_, name, template, context, doctree):  # pylint: disable=unused-argument
        if not chapters:
            for node in app.env.get_doctree("index").findall(addnodes.toctree):
                chapters.append((node["caption"], [(page, app.env.titles[page].astext()) for _, page in node["entries"]]))
        context["chapters"] = chapters
        for caption, pages in (c for c in chapters if c[0][0].isdigit()):
            for number, (page, _) in enumerate(pages, 1):
                if page == name:
                    context["place"] = "%s, page %d of %d" % (caption, number, len(pages))

    app.connect("html-page-context", navigation)
