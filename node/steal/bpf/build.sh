#!/bin/sh
# Compiles steal.bpf.c to the object that the Go package embeds.
#
#	build.sh [OBJECT]	default: ../steal.bpf.o
#
# The object's bytes depend only on the sources here and on clang's major
# version (CLANG and LLVM_STRIP name other binaries): no system header is
# read, no path of this machine gets in, and the debug information, which
# names the exact compiler, is stripped down to BTF.
set -eu
out=${1:-}
case $out in
"") ;;
/*) ;;
*) out=$PWD/$out ;;
esac
cd "$(dirname "$0")"
"${CLANG:-clang-14}" -O2 -g -target bpfel -mcpu=v2 \
	-Wall -Wextra -Werror -nostdinc \
	-ffile-prefix-map="$PWD"=. -fdebug-prefix-map="$PWD"=. -fdebug-compilation-dir=. \
	-c steal.bpf.c -o "${out:=../steal.bpf.o}"
"${LLVM_STRIP:-llvm-strip-14}" -g "$out"
