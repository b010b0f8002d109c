"""Stands in for Open WebUI around its loaders, which ask it for settings only."""
