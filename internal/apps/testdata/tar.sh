# Out of the mount, into it, sparse, and an archive that grows in place. The
# default format of tar has whole seconds.
needs tar gzip
export TAR_OPTIONS=--format=posix
tree "$LOCAL/src"
tar -cf plain.tar -C "$LOCAL/src" .
mkdir out sparse
tar -xpf plain.tar -C out
equal "$LOCAL/src" out
tar -czSf sparse.tgz -C out .
tar -xzSpf sparse.tgz -C sparse
equal "$LOCAL/src" sparse
tar -df plain.tar -C sparse
echo added >out/added
tar -rf plain.tar -C out ./added
tar --delete -f plain.tar ./large
tar -tf plain.tar | grep -qx ./added || fail "the appended member is missing"
if tar -tf plain.tar | grep -qx ./large; then fail "the deleted member is there"; fi
tar -cf - -C out . | tar -xf - -C "$LOCAL"
cmp "$LOCAL/large" out/large
# Members that are hard links: S3 has no second name.
mkdir "$LOCAL/hard"
echo x >"$LOCAL/hard/one"
ln "$LOCAL/hard/one" "$LOCAL/hard/two"
tar -cf "$LOCAL/hard.tar" -C "$LOCAL/hard" .
refused 'Operation not permitted' tar -xf "$LOCAL/hard.tar"
tar --hard-dereference -cf "$LOCAL/soft.tar" -C "$LOCAL/hard" .
mkdir soft
tar -xf "$LOCAL/soft.tar" -C soft
cmp soft/one soft/two
