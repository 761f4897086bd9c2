"""Modules beside these tests, which trials import too."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
