#!/usr/bin/env bash
# Puts the key reference that ./train prints between README's markers. With --check only compares.
set -eu
cd "$(dirname "$0")/.."
begin='<!-- keys: from ./train --help-markdown -->'
end='<!-- end of keys -->'
new=$(mktemp)
trap 'rm -f "$new"' EXIT
{
    sed "\|^$begin\$|q" README.md
    ./train --help-markdown
    sed -n "\|^$end\$|,\$p" README.md
} >"$new"
if [ "${1:-}" = --check ]; then
    cmp -s "$new" README.md && exit
    echo "README.md's key reference is old: run scripts/update_readme.sh"
    diff README.md "$new" | head -20
    exit 1
else
    cat "$new" >README.md
fi
