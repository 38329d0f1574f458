# Each stressor alone, for a fixed number of operations, checking what it reads
# back.
needs stress-ng
one() { # NAME OPERATIONS OPTIONS…
	stress-ng "--$1" 1 "--$1-ops" "$2" --verify --timeout 60 --temp-path "$PWD" --oomable --metrics-brief "${@:3}" >"$LOCAL/out" 2>&1 ||
		{ cat "$LOCAL/out" >&2; fail "stress-ng --$1"; }
	if grep -E 'stress-ng: fail:' "$LOCAL/out" >&2; then fail "stress-ng --$1"; fi
	grep -E "metrc.* $1 " "$LOCAL/out" | sed 's/.*metrc: *\[[0-9]*\] *//' || fail "stress-ng --$1 did nothing: $(cat "$LOCAL/out")"
}
one dir 2 --dir-dirs 64
one rename 200
one symlink 1 --timeout 10
one utime 100
one chmod 200
one xattr 50
one fallocate 20 --fallocate-bytes 4M
one seek 500 --seek-size 4M
one hdd 200 --hdd-bytes 4M
refused 'link calls not allowed on the filesystem' bash -c '
	stress-ng --link 1 --link-ops 1 --timeout 60 --temp-path "$PWD" 2>&1
	exit 1 # it calls that a success'
