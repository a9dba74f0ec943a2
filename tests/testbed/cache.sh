# cache.sh, to be sourced: files that were built once on this machine, by the hash of all that they were built from.
# Lies in NAVIGATOR_CACHE, by default ~/.cache/navigator, and may be removed at any time.
cache=${NAVIGATOR_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/navigator}

# key FILE|WORD ...: a short hash of these files' contents and these words.
key() { for part; do if [ -f "$part" ]; then cat "$part"; else echo "$part"; fi; done | sha256sum | cut -c 1-16; }

# cached ENTRY FILE: copies an entry to its place; false when there is none.
cached() {
  [ -f "$cache/$1" ] || return 1
  mkdir -p "$(dirname "$2")"
  cp "$cache/$1" "$2.$$" && mv "$2.$$" "$2" && touch "$cache/$1"
}

# keep ENTRY FILE: remembers it, and forgets what nobody asked for in a month.
keep() {
  mkdir -p "$(dirname "$cache/$1")" && cp "$2" "$cache/$1.$$" && mv "$cache/$1.$$" "$cache/$1"
  # Below the entry's own folder: NAVIGATOR_CACHE may be a folder of people's.
  find "$cache/${1%%/*}" -type f -mtime +30 -delete
}
