#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# musl_python.sh ZIG FOLDER: compile Python 3.11 for x86-64 with musl, of Debian 12's sources (with OpenSSL, zlib and libffi, not
# bzip2, xz and SQLite): FOLDER/bin/python3.11. It takes 3 minutes, and Debian's package musl, which the compiled programs run on.
set -eu
zig=$(realpath "$1")
folder=$(realpath -m "$2")
sources=$folder/sources
rm -rf "$folder"
mkdir -p "$sources/lists/partial" "$sources/cache/archives/partial" "$sources/parts"
cd "$sources"

# Lists of sources, which few machines have, from where this machine's packages come.
: >status
apt-get indextargets --format 'deb-src $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' 'Origin: Debian' >parts/debian.list
apt() {
	apt-get -q -o APT::Sandbox::User=root -o Dir::State::Lists="$sources/lists" -o Dir::State::status="$sources/status" \
		-o Dir::Cache="$sources/cache" -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$sources/parts" "$@"
}
apt update
names='zlib libffi openssl python3.11'
apt source --tar-only --download-only $names
for name in $names; do
	mkdir "$name"
	tar -x -f "$name"_*.orig.tar.* -C "$name" --strip-components 1
done

machine=x86_64-linux-musl
export CC="$zig cc -target $machine -dynamic" CXX="$zig c++ -target $machine -dynamic" AR="$zig ar" RANLIB="$zig ranlib"
export CFLAGS='-O1 -fPIC -Wno-date-time' PKG_CONFIG_LIBDIR="$folder/lib/pkgconfig"
jobs=$(nproc)
(cd zlib && ./configure --static --prefix="$folder" && make -j"$jobs" libz.a && make install)
(cd libffi && ./configure --build=$machine --disable-shared --disable-docs --disable-exec-static-tramp --prefix="$folder" &&
	make -j"$jobs" install)
(cd openssl && ./Configure linux-x86_64 no-shared no-tests no-engine no-dso --prefix="$folder" --libdir=lib &&
	make -j"$jobs" build_generated libcrypto.a libssl.a && make install_dev)
cd python3.11
sed -i '/self.add_multiarch_paths()/d; s|/usr/local/|/none/|' setup.py # headers and libraries there are for glibc
# Zig's musl, which is newer than Debian's, has two functions that are not there at run time.
./configure --build=$machine --with-openssl="$folder" --prefix="$folder" --with-ensurepip=no --disable-test-modules \
	CPPFLAGS="-I$folder/include" LDFLAGS="-L$folder/lib" ac_cv_func_preadv2=no ac_cv_func_pwritev2=no
make -j"$jobs"
make install
rm -rf "$sources"
