# CPython's own tests of its file modules, with their files in the mount. Those
# named here fail for what S3 cannot do, and no others.
#   ExtendedAttributeTests  100 attributes, more than the 2 KiB of metadata
#   Pep383Tests, undecodable  names that are not UTF-8
#   LargeMmapTests          write 5 GiB, since S3 has no holes; only with S3RDMAFS_LONG
needs /usr/bin/python3
exceptions='
test_fds test.test_os.ExtendedAttributeTests
test_lpath test.test_os.ExtendedAttributeTests
test_simple test.test_os.ExtendedAttributeTests
test_listdir test.test_os.Pep383Tests
test_open test.test_os.Pep383Tests
test_stat test.test_os.Pep383Tests
test_statvfs test.test_os.Pep383Tests
test_open_undecodable_uri test.test_sqlite3.test_dbapi.OpenTests
test_open_with_undecodable_path test.test_sqlite3.test_dbapi.OpenTests
'
without=(-i '*LargeMmapTests*')
[ -z "${S3RDMAFS_LONG:-}" ] || without=()

suite() { # PYTHON MODULE
	local out=$LOCAL/$2 failed expected
	mkdir "$2"
	TMPDIR=$PWD/$2 "$1" -m test -v --tempdir "$PWD/$2" "${without[@]}" "$2" >"$out" 2>&1 || true
	grep -E '^Ran [1-9][0-9]* test' "$out" || { tail -n 20 "$out" >&2; fail "$2 ran no tests"; }
	failed=$(sed -nE 's/^(ERROR|FAIL): (test[^ ]*) \(([A-Za-z0-9_.]*[A-Z][A-Za-z0-9]*).*\).*/\2 \3/p' "$out" | sort -u)
	expected=$(grep -F " test.$2." <<<"$exceptions" | sort -u || true)
	if [ "$failed" != "$expected" ]; then
		diff <(echo "$expected") <(echo "$failed") >&2 || true
		grep -E -A 30 '^(ERROR|FAIL):' "$out" | tail -n 200 >&2
		fail "$2: not the tests that were to fail"
	fi
	if grep -E '^(ERROR|FAIL): ' "$out" | grep -vE '^(ERROR|FAIL): test' >&2; then fail "$2: a fixture failed"; fi
	rm -r "$2"
}
/usr/bin/python3 -c 'import test.test_os' 2>/dev/null || skip "needs Debian's test suite of CPython"
for module in test_os test_shutil test_tempfile test_fcntl test_mmap; do
	suite /usr/bin/python3 "$module"
done
# Debian leaves this one out.
for python in /usr/bin/python3 python3; do
	if "$python" -c 'import sqlite3, test.test_sqlite3' 2>/dev/null; then
		suite "$python" test_sqlite3
		exit 0
	fi
done
echo "test_sqlite3 was not run: no CPython here has it"
