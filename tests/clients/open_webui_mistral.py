"""Runs Open WebUI's unmodified loader for Mistral OCR, in a separate virtual environment.

python open_webui_mistral.py LOADER_FILE ADDRESS
"""

from __future__ import annotations

import runpy
import sys

# The test reads this output.
write = print

Loader = runpy.run_path(sys.argv[1])["MistralLoader"]
for use_base64 in (False, True):
    loader = Loader(base_url=f"{sys.argv[2]}/v1", api_key="none", file_path="page.png", use_base64=use_base64)
    for document in loader.load():
        write(document.page_content, document.metadata)
        assert "error" not in document.metadata
