"""Stand-in for Open WebUI's helper modules."""
