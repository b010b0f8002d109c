"""Stand-in for the Open WebUI package: its loaders import only settings from it."""
