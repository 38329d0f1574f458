# The test suite of bbolt: mappings, locks and fdatasync in files that grow.
needs go
version=v1.4.3
source=$(cd "$LOCAL" && go mod download -json "go.etcd.io/bbolt@$version" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p') || true
[ -n "$source" ] || skip "bbolt $version does not come from the module proxy"
cp -r "$source" "$LOCAL/bbolt"
chmod -R u+w "$LOCAL/bbolt"
cd "$LOCAL/bbolt"
GOTOOLCHAIN=local go test -c -o "$LOCAL/bbolt.test" . 2>"$LOCAL/build" || { cat "$LOCAL/build"; skip "bbolt $version could not be built"; }
TMPDIR=$OLDPWD "$LOCAL/bbolt.test" -test.short >"$LOCAL/out" 2>&1 || { tail -n 100 "$LOCAL/out" >&2; fail bbolt; }
tail -n 1 "$LOCAL/out"
