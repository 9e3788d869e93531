#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# in_arm64.sh ROOT COMMAND...: run a program of a folder with a system for arm64, by qemu, as root of that system alone. What it
# starts runs by qemu, too; the kernel is told so in a namespace of its own (Linux 6.7 or later), so this machine stays as it is.
set -eu
exec unshare --user --map-root-user --mount --propagation private sh -c '
set -eu
root=$1
shift
mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
magic="\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
mask="\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"
printf %s ":arm64:M::$magic:$mask:/usr/bin/qemu-aarch64-static:F" >/proc/sys/fs/binfmt_misc/register
for folder in proc dev; do mount --rbind /$folder "$root/$folder"; done
exec chroot "$root" "$@"
' - "$@"
