#!/usr/bin/env bash
# Writes tests/data/ownership/cases.jsonl: runs upstream's own tests of structured-merge-diff in a
# copy that notes what is asked and what is answered. Run by hand, when the version below changes.
set -euo pipefail

version=v6.3.0
here=$(cd "$(dirname "$0")" && pwd)
cases=$here/../data/ownership/cases.jsonl
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cd "$work"
printf 'module record\ngo 1.23\n' >go.mod
source=$(go mod download -json "sigs.k8s.io/structured-merge-diff/v6@$version" |
  python3 -c 'import json, sys; print(json.load(sys.stdin)["Dir"])')
cp -r "$source" copy
chmod -R u+w copy
python3 "$here/instrument.py" copy
cd copy
for package in value fieldpath typed merge; do
  RECORD=$work/cases RECORD_PACKAGE=$package go test -p 1 -count 1 "./$package"
done
mv "$work/cases" "$cases"
wc -l "$cases"
