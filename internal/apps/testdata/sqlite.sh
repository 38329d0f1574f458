# Four writers in one database, with the rollback journal and its variants. WAL
# needs memory shared by processes, which FUSE gives to those of one mount.
needs sqlite3
for mode in delete truncate persist wal; do
	db=$mode.db
	sqlite3 "$db" "PRAGMA journal_mode=$mode; CREATE TABLE t(w INT, i INT, pad BLOB);" >/dev/null
	writers=()
	for w in 1 2 3 4; do
		(for i in $(seq 8); do
			echo "INSERT INTO t VALUES($w, $i, randomblob(3000));"
		done) | sqlite3 -bail -cmd '.timeout 120000' "$db" &
		writers+=($!)
	done
	for w in "${writers[@]}"; do wait "$w" || fail "$mode: a writer failed"; done
	[ "$(sqlite3 "$db" 'PRAGMA integrity_check')" = ok ] || fail "$mode: integrity_check"
	[ "$(sqlite3 "$db" 'SELECT count(*) FROM t')" = 32 ] || fail "$mode: rows are missing"
	sqlite3 "$db" 'DELETE FROM t WHERE w = 2; VACUUM;'
	[ "$(sqlite3 "$db" 'PRAGMA integrity_check')" = ok ] || fail "$mode: integrity_check after VACUUM"
done
