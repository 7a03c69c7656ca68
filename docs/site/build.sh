#!/usr/bin/env bash
# Builds the documentation as a site with a search, from the pages of the repository: docs/site/build.sh [FOLDER]
#
# FOLDER is target/site when it is not given. A link that leads nowhere is an error. MkDocs comes from PyPI, into target/mkdocs.
set -euo pipefail
cd "$(dirname "$0")/../.."
site=$(realpath -m "${1:-target/site}") tool=target/mkdocs/1.6.1
command -v python3 >/dev/null || { echo "build.sh: no python3: install python3 and python3-venv" >&2; exit 1; }
if [ ! -x "$tool/bin/mkdocs" ]; then
  rm -rf target/mkdocs
  python3 -m venv "$tool"
  "$tool/bin/python" -m pip install --quiet --disable-pip-version-check mkdocs==1.6.1 pymdown-extensions==10.16
fi
rm -rf target/pages
"$tool/bin/python" docs/site/pages.py target/pages
"$tool/bin/mkdocs" build --strict --config-file target/pages/mkdocs.yml --site-dir "$site"
echo "build.sh: $site/index.html"
