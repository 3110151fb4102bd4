"""Folders that tests look into."""

from pathlib import Path

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
MODELS = ROOT / "models"
DOCS = ROOT / "docs"
# Transcriptions of printed tables, beside the checkout where they exist.
PUBLISHED = ROOT.parent / "shared" / "published"
