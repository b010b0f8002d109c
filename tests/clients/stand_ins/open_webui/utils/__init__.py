"""Stands in for Open WebUI's helpers."""
