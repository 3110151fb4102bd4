"""Folders that tests read."""

from pathlib import Path

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
MODELS = ROOT / "models"
DOCS = ROOT / "docs"
# Transcriptions of printed tables, next to the repository if they exist.
PUBLISHED = ROOT.parent / "shared" / "published"
