# A file server's load, as dbench's recording has it, for two clients.
needs dbench
dbench -D . -t 8 2 >"$LOCAL/out" || { cat "$LOCAL/out" >&2; fail dbench; }
grep -q '^Throughput' "$LOCAL/out" || { cat "$LOCAL/out" >&2; fail "dbench did not end"; }
# It tells what an operation did that differs from the recording.
if grep -E '^\[[0-9]+\] ' "$LOCAL/out" >&2; then fail "dbench met errors"; fi
