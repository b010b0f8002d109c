#!/bin/sh
# The text of an image, asked again for a while when the service is busy: read.sh URL IMAGE
# curl itself waits as long as Retry-After says.
curl --fail-with-body --silent --show-error --retry 5 --retry-max-time 120 \
  -H 'Content-Type: application/octet-stream' --data-binary "@$2" "$1/v1/ocr?format=text"
