# Random writes, each checked; over buffered, mapped and direct, asynchronous I/O.
needs fio
verified() {
	fio --name="$1" --directory=. --size=6M --bs=4k-64k --rw=randwrite --verify=crc32c --do_verify=1 \
		--verify_fatal=1 --randseed=7 --fsync=64 --output-format=terse --output=/dev/null "${@:2}" ||
		fail "fio $1"
}
verified psync --ioengine=psync
verified mmap --ioengine=mmap --bs=4k
verified libaio --ioengine=libaio --iodepth=8 --direct=1 --bs=4k
verified two --ioengine=psync --numjobs=2 --thread
verified append --ioengine=psync --rw=write --verify=md5 --overwrite=0
