# shellcheck shell=bash
# QEMU: the installed one, else a copy in the cache folder. Sourced by rdma-vm;
# sets qemu to the program with what it needs to find its files.

qemu=()
prepare_qemu() {
	local deb dir=$cache/qemu lib
	if command -v qemu-system-x86_64 >/dev/null; then
		qemu=(qemu-system-x86_64)
		return
	fi
	if [ ! -e "$dir/ok" ]; then
		note "getting QEMU (once)"
		rm -rf "$dir"
		mkdir -p "$dir"
		fetch "$dir/debs" resolve qemu-system-x86
		while read -r deb; do
			# The system's own C library goes with the system's own loader.
			case ${deb##*/} in libc6_*|libc-bin_*|libgcc-s1_*) continue ;; esac
			unpack "$deb" "$dir" --exclude=./usr/share/doc --exclude=./usr/share/man
		done <"$dir/debs"
		: >"$dir/ok"
	fi
	lib=usr/lib/x86_64-linux-gnu
	qemu=(env
		"LD_LIBRARY_PATH=$dir/$lib:$dir/lib/x86_64-linux-gnu:$dir/$lib/pulseaudio"
		"QEMU_MODULE_DIR=$dir/$lib/qemu"
		"$dir/usr/bin/qemu-system-x86_64" -L "$dir/usr/share/qemu" -L "$dir/usr/share/seabios"
		-L "$dir/usr/lib/ipxe/qemu")
}

# accel_opts ACCEL: QEMU's options for it, one a line.
accel_opts() {
	case $1 in
	kvm) printf '%s\n' -accel kvm -cpu host ;;
	# x86-64-v2 and no more: in emulation, RDMA writes came out about twice as
	# fast as with all that QEMU can emulate.
	tcg) printf '%s\n' -accel tcg,thread=multi,tb-size=512 \
		-cpu qemu64,+ssse3,+sse4.1,+sse4.2,+popcnt,+cx16,+lahf_lm,+rdrand ;;
	esac
}
