"""The published rows, one file for each source (README.md has their form), and their reader."""

from ..reading import FOLDER, Published, read_published

__all__ = ["FOLDER", "Published", "read_published"]
