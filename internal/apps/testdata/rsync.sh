# Each way of writing; the second run has nothing to transfer.
needs rsync
tree "$LOCAL/src"
again() { # OPTIONS…: what a run would still do to files
	rsync -a --itemize-changes "$@" | grep -v '^\.d' || true
}
rsync -a "$LOCAL/src/" plain/
equal "$LOCAL/src" plain
[ -z "$(again "$LOCAL/src/" plain/)" ] || fail "second run: $(again -n "$LOCAL/src/" plain/)"

rsync -a --inplace "$LOCAL/src/" inplace/
echo more >>"$LOCAL/src/large"
printf X | dd of="$LOCAL/src/a/medium" bs=1 seek=1000 conv=notrunc status=none
rsync -a --inplace --no-whole-file "$LOCAL/src/" inplace/
equal "$LOCAL/src" inplace
[ -z "$(again --inplace "$LOCAL/src/" inplace/)" ] || fail "second run with --inplace transfers"

head -c 1000000 "$LOCAL/src/large" >half
mkdir append
mv half append/large
rsync -a --append "$LOCAL/src/" append/
rsync -a "$LOCAL/src/a/b/" append/a/b/
cmp "$LOCAL/src/large" append/large
[ -z "$(again --append "$LOCAL/src/" append/)" ] || fail "second run with --append transfers"

rsync -a --delete --partial --checksum "$LOCAL/src/a/" plain/
rsync -aS plain/ "$LOCAL/back/"
equal "$LOCAL/src/a" "$LOCAL/back"
rsync -a --remove-source-files append/ moved/
[ -z "$(find append -type f)" ] || fail "--remove-source-files left files"

# Hard links are refused where they are asked for, and copied where they would
# only save room.
mkdir "$LOCAL/hard"
echo x >"$LOCAL/hard/one"
ln "$LOCAL/hard/one" "$LOCAL/hard/two"
refused 'Operation not permitted' rsync -aH "$LOCAL/hard/" linked/
rsync -a "$LOCAL/hard/" copied/
rsync -a --link-dest="$PWD/copied" "$LOCAL/hard/" again/
diff -r "$LOCAL/hard" again
