#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# unpack_package.sh PACKAGE ARCHITECTURE FOLDER: unpack a Debian package, of any architecture, without installing it.
set -eu
state=$(mktemp -d)
trap 'rm -rf "$state" "$3.new"' EXIT
mkdir -p "$state/lists/partial" "$state/cache/archives/partial" "$3.new"
: > "$state/status"
apt() {
	apt-get -q -o APT::Architecture="$architecture" -o APT::Architectures="$architecture" -o APT::Sandbox::User=root \
		-o Dir::State::Lists="$state/lists" -o Dir::State::status="$state/status" -o Dir::Cache="$state/cache" "$@"
}
architecture=$2
apt update || true # a mirror may lack an index, of another suite: then the download still works
(cd "$state" && apt download "$1")
dpkg -x "$state/$1"_*.deb "$3.new"
mv "$3.new" "$3"
