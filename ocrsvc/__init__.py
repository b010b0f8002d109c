"""ocrsvc: an OCR service. This file holds the version and nothing else."""

__version__ = "0.1.0"
