"""The playground's page with one script and one style sheet: its fifty files are most of what opening a page costs."""

import re
import shutil
from pathlib import Path

from local.front import PLAYGROUND
from tests.browser.npm_packages import bundle

STYLE_SHEET = re.compile(r'<link rel="stylesheet" href="(.+?)" />\s*')


def bundled_page(folder: Path) -> Path:
    """Copy the page to `folder`, bundle the copy and return it. Its modules stay, for tests that import one."""
    shutil.copytree(PLAYGROUND, folder)
    bundle(PLAYGROUND / "app.js", folder / "app.js", "--allow-overwrite")
    html = (PLAYGROUND / "index.html").read_text()
    styles = [(PLAYGROUND / name).read_text() for name in STYLE_SHEET.findall(html)]
    (folder / "styles.css").write_text("\n".join(styles))
    html = STYLE_SHEET.sub("", html).replace("</head>", '<link rel="stylesheet" href="styles.css" /></head>')
    (folder / "index.html").write_text(html)
    return folder
