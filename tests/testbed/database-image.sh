#!/usr/bin/env bash
# database-image.sh cassandra|elasticsearch VERSION [DIR]: packs a database image with the vendor's paths, user and
# variables out of Debian's Java runtime and the database from the Java package registry, as
# DIR/images/NAME-VERSION.tar under exactly the name that the samples use. Skips what is there.
# About 100 s from nothing on 2 cores, 25 s once the base root is there, none
# when another checkout made it (cache.sh).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
flavour=${1:?usage: database-image.sh cassandra|elasticsearch VERSION [DIR]} version=${2:?usage: database-image.sh cassandra|elasticsearch VERSION [DIR]}
dir=$(mkdir -p "${3:-.testbed}" && cd "${3:-.testbed}" && pwd)
out=$dir/images/$flavour-$version.tar base=$dir/images/debian
mkdir -p "$dir/images"
. "$here/cache.sh"
key=$(key "$0" "$here/get-$flavour.sh" "$here/image.py" "$here/nofile.c" "$(ulimit -Hn)")
kept=images/$key/$flavour-$version.tar
# Several may ask for it at one time.
exec 7>"$dir/images/lock" && flock 7
[ -f "$out" ] && [ "$(cat "$out.key" 2>/dev/null)" = "$key" ] && exit 0
rm -f "$out.key"
cached "$kept" "$out" && echo "$key" >"$out.key" && exit 0

if [ ! -f "$base/.complete" ]; then
  rm -rf "$base"
  # (what it mounts goes with it, also when it is killed)
  "$here/../../scripts/fetch.sh" unshare --mount --propagation private debootstrap --variant=minbase --include=ca-certificates,curl,procps,python3,openjdk-17-jre-headless bookworm "$base" >"$dir/images/debootstrap.log" 2>&1 ||
    { tail -n 20 "$dir/images/debootstrap.log" >&2; exit 1; }
  rm -rf "$base"/var/cache/apt/* "$base"/var/lib/apt/lists/* "$base"/usr/share/{doc,man,locale}
  mkdir -p "$base/opt/java" && ln -s /usr/lib/jvm/java-17-openjdk-amd64 "$base/opt/java/openjdk"
  touch "$base/.complete"
fi

root=$dir/images/$flavour-$version
rm -rf "$root" && cp -a "$base" "$root"
trap 'rm -rf "$root"' EXIT
case $flavour in
cassandra)
  # As https://github.com/docker-library/cassandra lays it out: uid and gid 999, /opt/cassandra, /etc/cassandra.
  "$here/get-cassandra.sh" "$version" "$dir/cassandra-$version"
  groupadd -R "$root" -r -g 999 cassandra && useradd -R "$root" -r -g cassandra -u 999 -d /var/lib/cassandra cassandra
  cp -a "$dir/cassandra-$version" "$root/opt/cassandra"
  # cqlsh is in the vendor's archive, and not in what the Java package registry has of Cassandra.
  "$here/venv.sh" "$dir"
  "$here/../../scripts/fetch.sh" "$dir/venv/bin/pip" install --quiet --disable-pip-version-check --target "$root/opt/cassandra/pylib" \
    --python-version 3.11 --only-binary :all: cqlsh==6.2.2 cassandra-driver==3.30.1
  printf '#!/bin/sh\nPYTHONPATH=/opt/cassandra/pylib exec python3 -m cqlshlib "$@"\n' >"$root/opt/cassandra/bin/cqlsh"
  chmod +x "$root/opt/cassandra/bin/cqlsh"
  mv "$root/opt/cassandra/conf" "$root/etc/cassandra" && ln -s /etc/cassandra "$root/opt/cassandra/conf"
  mkdir -p "$root"/var/lib/cassandra "$root"/var/log/cassandra
  chown -R 999:999 "$root"/etc/cassandra "$root"/var/lib/cassandra "$root"/var/log/cassandra
  "$here/image.py" "docker.io/library/cassandra:$version" "$out" '["/opt/cassandra/bin/cassandra", "-f"]' "$root" "" \
    CASSANDRA_HOME=/opt/cassandra CASSANDRA_CONF=/etc/cassandra CASSANDRA_VERSION="$version" JAVA_HOME=/opt/java/openjdk \
    PATH=/opt/cassandra/bin:/opt/java/openjdk/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin ;;
elasticsearch)
  # As docker.elastic.co/elasticsearch/elasticsearch lays it out: uid 1000 in groups 1000 and 0, everything below
  # /usr/share/elasticsearch with its Java in jdk/, no variable but PATH.
  home=usr/share/elasticsearch
  "$here/get-elasticsearch.sh" "$version" "$dir/elasticsearch-$version"
  groupadd -R "$root" -g 1000 elasticsearch && useradd -R "$root" -u 1000 -g 1000 -G 0 -d "/$home" -M elasticsearch
  mkdir -p "$root/$home" && cp -a "$dir/elasticsearch-$version/." "$root/$home"
  mkdir -p "$root/$home"/{data,logs,plugins} && ln -s /opt/java/openjdk "$root/$home/jdk"
  chown -hR 1000:0 "$root/$home" && chmod 0775 "$root/$home" "$root/$home"/{config,data,logs,plugins}
  limits=()
  if [ "$(ulimit -Hn)" != unlimited ] && [ "$(ulimit -Hn)" -lt 65535 ] && ! (ulimit -n 65536) 2>/dev/null; then
    echo "database-image.sh: at most $(ulimit -Hn) open files on this machine; the image tells Elasticsearch of 65536, and its pilot to go on" >&2
    cc -shared -fPIC -O1 -o "$root/usr/lib/nofile.so" "$here/nofile.c" && echo /usr/lib/nofile.so >"$root/etc/ld.so.preload"
    limits=(NAVIGATOR_ALLOW_LOW_LIMITS=true)
  fi
  "$here/image.py" "docker.elastic.co/elasticsearch/elasticsearch:$version" "$out" '["/usr/share/elasticsearch/bin/elasticsearch"]' \
    "$root" "1000:0" "${limits[@]}" PATH=/usr/share/elasticsearch/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin ;;
*) echo "database-image.sh: unknown database $flavour" >&2; exit 64 ;;
esac
echo "$key" >"$out.key"
keep "$kept" "$out"
echo "$out ($(du -m "$out" | cut -f1) MB)"
