#!/usr/bin/env bash
# Makes the images of the documents anew, in this folder: docs/images/make.sh
#
# They are pages of the console in Chromium, which `docker/servers.sh` fetches.
set -euo pipefail
cd "$(dirname "$0")"
ROWLOCK_IMAGES=$PWD cargo test --locked -p rowlock-cli --test browser -- images::
ls -l -- *.png
