# Sourced before each script. The working directory is a fresh directory of the
# mount, $LOCAL one of a local file system.
set -euo pipefail
export LC_ALL=C

fail() { echo "FAILED: $*" >&2; exit 1; }

# skip WHY: the script cannot run here.
skip() { echo "$*"; exit 77; }

# needs COMMAND…
needs() {
	local c
	for c in "$@"; do
		command -v "$c" >/dev/null || skip "needs $c"
	done
}

# refused ERRNO-TEXT COMMAND…: the command fails, and says so in these words.
refused() {
	local want=$1 out
	shift
	if out=$("$@" 2>&1); then fail "succeeded, should not: $*"; fi
	[[ $out == *"$want"* ]] || fail "$*: said '$out', not '$want'"
}

# tree DIR: a small tree of text, random bytes, a sparse file, links, modes and
# old times; 55 entries, 5 MB.
tree() {
	mkdir -p "$1"/a/b/c "$1/with space" "$1/empty"
	for i in $(seq 40); do
		seq $((i * 50)) >"$1/a/b/text-$i"
	done
	head -c 300000 /dev/urandom >"$1/a/medium"
	head -c 3000000 /dev/urandom >"$1/large"
	: >"$1/a/b/c/none"
	printf 'line\n' >"$1/with space/café"
	truncate -s 2M "$1/sparse"
	printf mark | dd of="$1/sparse" bs=1 seek=1000000 conv=notrunc status=none
	ln -s a/medium "$1/link"
	ln -s nowhere "$1/dangling"
	chmod 755 "$1/a/b/text-1"
	chmod 600 "$1/a/b/text-2"
	# In the past, since rsync leaves a time alone that differs by less than a second.
	find "$1" -exec touch -h -d '2021-02-03 04:05:06.789' {} +
	touch -d '2001-02-03 04:05:06' "$1/a/b/text-3" "$1/large"
}

# equal DIR DIR: the same names, types, modes, times of files, targets and bytes.
equal() {
	local a b
	a=$(cd "$1" && find . -type d -printf 'd %m %p\n' -o -printf '%y %m %s %T@ %l %p\n' | sed 's/\(\.[0-9]*\)0* /\1 /' | sort)
	b=$(cd "$2" && find . -type d -printf 'd %m %p\n' -o -printf '%y %m %s %T@ %l %p\n' | sed 's/\(\.[0-9]*\)0* /\1 /' | sort)
	[[ $a == "$b" ]] || { diff <(echo "$a") <(echo "$b") >&2 || true; fail "$1 and $2 differ"; }
	diff -r --no-dereference "$1" "$2" || fail "$1 and $2 differ"
}
