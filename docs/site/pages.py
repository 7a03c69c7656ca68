"""Copies the pages into the folder argv[1], for MkDocs, under the paths that they have here.

A link to a file that is no page (code, a license) becomes its text. A link to a file that does not exist is an error.
"""

import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)#\s]*)(#[^)\s]*)?\)")
# In the order of the menu.
FIRST = ["README", "docs/MODES", "docs/PRODUCTION", "docs/GUARANTEES", "docs/COMPARE", "docs/COOKBOOK", "docs/TESTING"]
LAST = ["ARCHITECTURE", "CONTRIBUTING", "CHANGELOG"]
SETTINGS = """\
site_name: rowlock
site_description: Distributed locks and idempotency that live as rows in the SQL database an application already runs
docs_dir: pages
use_directory_urls: false
theme: {name: readthedocs, navigation_depth: 2}
plugins: [search]
markdown_extensions:
  - tables
  - fenced_code
  - toc: {slugify: !!python/object/apply:pymdownx.slugs.slugify {kwds: {case: lower}}}
validation: {links: {not_found: warn, anchors: warn, absolute_links: warn, unrecognized_links: warn}}
nav:
"""


def is_page(path):
    inside = path.relative_to(ROOT)
    return path.suffix == ".md" and (len(inside.parts) == 1 or inside.parts[0] == "docs")


def page(path):
    """The text of a page, with links to pages only."""
    dead = []

    def link(found):
        text, target, anchor = found.groups()
        if not target or "://" in target or target.startswith("mailto:"):
            return found.group()
        leads_to = (path.parent / target).resolve()
        if not leads_to.exists():
            dead.append(target)
        is_shown = leads_to.is_file() and (is_page(leads_to) or "docs" in leads_to.relative_to(ROOT).parts[:1])
        return found.group() if is_shown else text

    is_code, lines = False, []
    for line in path.read_text().splitlines():
        is_code ^= line.lstrip().startswith("```")
        lines.append(line if is_code else LINK.sub(link, line))
    if dead:
        sys.exit(f"{path.relative_to(ROOT)}: these files do not exist: {', '.join(dead)}")
    # Attributes of rustdoc's, which MkDocs does not know.
    return re.sub(r"^```rust,\S*", "```rust", "\n".join(lines), flags=re.M) + "\n"


def main(folder):
    out = Path(folder)
    shutil.copytree(ROOT / "docs", out / "pages" / "docs", ignore=shutil.ignore_patterns("site", "*.md"))
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("**/*.md")]
    for path in pages:
        to = out / "pages" / path.relative_to(ROOT)
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_text(page(path))
    names = sorted(str(path.relative_to(ROOT).with_suffix("")) for path in pages)
    middle = [name for name in names if name not in FIRST + LAST]
    menu = "".join(f"  - {name.rsplit('/', 1)[-1]}: {name}.md\n" for name in FIRST + middle + LAST)
    (out / "mkdocs.yml").write_text(SETTINGS + menu)


main(sys.argv[1])
