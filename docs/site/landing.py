"""What the landing page shows that is written elsewhere: the first example and the description of the project."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import BashLexer, PythonLexer


def context(root: Path) -> dict[str, Any]:
    """Names that ``templates/landing.html`` uses."""
    readme = (root / "README.md").read_text(encoding="utf-8")
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    return {
        "description": settings["project"]["description"],
        "first_script": _coloured(_block(readme, "python run"), PythonLexer()),
        "install": _coloured(_block(readme, "bash"), BashLexer()),
        "kill": _coloured(_block(readme.split("kill it after two seconds")[1], "bash"), BashLexer()),
    }


def _block(text: str, language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert found, f"README.md has no block of {language} any more that the landing page can show"
    return found[1]


def _coloured(code: str, lexer: Any) -> str:
    return highlight(code, lexer, HtmlFormatter(wrapcode=True))
